// Runs the kernels between rounds of drafts on Dawn in Node. usage: node next_round.mjs JOB.json
//
// Job: {modules, output, cases: [{sizes: {stride, state, rotary}, rows, buffers: {NAME: words}}]}. `modules` holds
// what it needs of web/src as JavaScript. The device has the limits that every device has. result.json:
// {found: [{NAME: words}]}, the buffers of each case after `gather_drafts` on so many rows and `next_round`.
import path from "node:path";
import { pathToFileURL } from "node:url";
import { readJob, settle } from "../../gemma4_compile/verification/webgpu_device.mjs";
import { errors, runJob } from "./dawn_gpu.mjs";

const job = readJob();
const load = (name) => import(pathToFileURL(path.join(job.modules, `${name}.js`)).href);
const { bindRoundKernel, makeRoundPipelines, sizesInMemory } = await load("next_round");
const { nativeOf } = await load("native");

async function wordsOf(device, buffer) {
  const staging = device.createBuffer({ size: buffer.size, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
  const encoder = device.createCommandEncoder();
  encoder.copyBufferToBuffer(buffer, 0, staging, 0, buffer.size);
  device.queue.submit([encoder.finish()]);
  await staging.mapAsync(GPUMapMode.READ);
  return [...new Uint32Array(staging.getMappedRange())];
}

async function main() {
  const adapter = await navigator.gpu.requestAdapter();
  const device = await adapter.requestDevice();
  device.addEventListener("uncapturederror", ({ error }) => errors.push(error.message));
  const native = nativeOf(device);
  const pipelines = await makeRoundPipelines(native);
  const make = (words, usage) => {
    const buffer = device.createBuffer({ size: words.byteLength, usage: usage | GPUBufferUsage.COPY_DST });
    device.queue.writeBuffer(buffer, 0, words);
    return buffer;
  };
  const found = [];
  for (const { sizes, rows, buffers } of job.cases) {
    const uniform = make(sizesInMemory(sizes), GPUBufferUsage.UNIFORM);
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC;
    const made = Object.fromEntries(
      Object.entries(buffers).map(([name, words]) => [name, make(Uint32Array.from(words), usage)]),
    );
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    for (const [name, blocks] of [
      ["gather_drafts", rows],
      ["next_round", 1],
    ]) {
      pass.setPipeline(pipelines[name]);
      pass.setBindGroup(0, bindRoundKernel(native, pipelines, name, uniform, made));
      pass.dispatchWorkgroups(blocks, 1, 1);
    }
    pass.end();
    device.queue.submit([encoder.finish()]);
    const after = {};
    for (const [name, buffer] of Object.entries(made)) after[name] = await wordsOf(device, buffer);
    found.push(after);
  }
  await settle({ device, errors });
  return { found };
}
await runJob(job, main);
