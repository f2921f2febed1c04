// Calls functions of a library on Dawn in Node. usage: node dawn_kernels.mjs JOB.json
//
// Job: {library, output, cases: [{function, args: [number | {file, shape, dtype, save?}]}]}. Files hold raw
// bytes; an argument with `save` is written there after the call.
import fs from "node:fs/promises";
import path from "node:path";
import { errors, openDevice, release, settle } from "../web/dawn_gpu.mjs";
import { tvmjs } from "../web/dawn_model.mjs";

const job = JSON.parse(await fs.readFile(process.argv[2], "utf8"));
const log = [];
const logger = (...args) => log.push(args.join(" "));

async function main() {
  const { device, description } = await openDevice(tvmjs, logger);
  const wasm = await fs.readFile(job.library);
  const tvm = await tvmjs.instantiate(wasm, tvmjs.createPolyfillWASI(), logger);
  tvm.initWebGPU(device);
  const gpu = tvm.webgpu();
  tvm.beginScope();
  const vm = tvm.detachFromCurrentScope(tvm.createVirtualMachine(gpu));
  tvm.endScope();
  await tvm.asyncLoadWebGPUPipelines(vm.getInternalModule());
  for (const { function: name, args } of job.cases) {
    tvm.beginScope();
    const values = [];
    for (const arg of args) {
      if (typeof arg === "number") {
        values.push(tvm.scalar(arg, "int64"));
        continue;
      }
      const bytes = await fs.readFile(path.join(job.output, arg.file));
      values.push(tvm.empty(arg.shape, arg.dtype, gpu).copyFromRawBytes(new Uint8Array(bytes)));
    }
    vm.getFunction(name)(...values);
    for (const [index, arg] of args.entries()) {
      if (arg.save === undefined) continue;
      const host = tvm.empty(arg.shape, arg.dtype, tvm.cpu()).copyFrom(values[index]);
      await gpu.sync();
      await fs.writeFile(path.join(job.output, arg.save), host.toRawBytes());
    }
    await settle(device);
    if (errors.length) throw new Error(`WebGPU error in ${name}`);
    tvm.endScope();
  }
  return { device: description };
}

let outcome;
try {
  outcome = await main();
} catch (error) {
  outcome = { error: String(error?.stack ?? error) };
}
await fs.writeFile(path.join(job.output, "result.json"), JSON.stringify({ ...outcome, errors, log }));
release();
process.exit(outcome.error || errors.length ? 1 : 0);
