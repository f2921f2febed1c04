// Calls functions of a library on Dawn in Node. usage: node dawn_kernels.mjs JOB.json
//
// Job: {library, output, cases: [{function, args: [number | tensor | [tensor]], result?}]}, a tensor is
// {file, shape, dtype, save?}. Files hold raw bytes; an argument with `save` is written there after the call, as is the
// tensor that the function returns to `result`.
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
  const write = async (tensor, file) => {
    const host = tvm.empty(tensor.shape, tensor.dtype, tvm.cpu()).copyFrom(tensor);
    await gpu.sync();
    await fs.writeFile(path.join(job.output, file), host.toRawBytes());
  };
  const read = async ({ file, shape, dtype }) => {
    const bytes = new Uint8Array(await fs.readFile(path.join(job.output, file)));
    const tensor = tvm.empty(shape, dtype, gpu);
    if (bytes.length % 4 === 0) return tensor.copyFromRawBytes(bytes);
    // As the client loads weights that end within a word.
    return tensor.copyFrom(tvm.empty(shape, dtype, tvm.cpu()).copyFromRawBytes(bytes));
  };
  for (const { function: name, args, result } of job.cases) {
    tvm.beginScope();
    const values = [];
    for (const arg of args) {
      if (typeof arg === "number") {
        values.push(tvm.scalar(arg, "int64"));
        continue;
      }
      if (Array.isArray(arg)) {
        const tensors = [];
        for (const item of arg) tensors.push(await read(item));
        values.push(tvm.makeTVMArray(tensors));
        continue;
      }
      values.push(await read(arg));
    }
    const returned = vm.getFunction(name)(...values);
    if (result !== undefined) await write(returned, result);
    for (const [index, arg] of args.entries()) {
      if (arg.save !== undefined) await write(values[index], arg.save);
    }
    await settle(opened, ` in ${name}`);
    tvm.endScope();
  }
  return { device: opened.description };
}

await runJob(job, main);
