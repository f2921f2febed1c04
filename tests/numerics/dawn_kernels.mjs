// Calls functions of a library on Dawn in Node. usage: node dawn_kernels.mjs JOB.json
//
// Job: {library, output, cases: [{function, args: [number | {file, shape, dtype, save?}]}]}. Files hold raw
// bytes; an argument with `save` is written there after the call.
import fs from "node:fs/promises";
import path from "node:path";
import { loadRuntime, readJob, settle } from "../../gemma4_compile/verification/webgpu_device.mjs";
import { compilePipelines, openLibrary } from "../../gemma4_compile/verification/webgpu_model.mjs";
import { logger, NODE_MODULES, openDevice, runJob } from "../web/dawn_gpu.mjs";

const job = readJob();

async function main() {
  const tvmjs = loadRuntime(NODE_MODULES);
  const opened = await openDevice(tvmjs);
  const library = await openLibrary(tvmjs, opened.device, await fs.readFile(job.library), logger);
  const { tvm, gpu, vm } = library;
  await compilePipelines(library);
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
    await settle(opened, ` in ${name}`);
    tvm.endScope();
  }
  return { device: opened.description };
}

await runJob(job, main);
