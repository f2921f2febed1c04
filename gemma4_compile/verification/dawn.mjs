// Runs a list of steps on one package on Dawn in Node. usage: node dawn.mjs JOB.json
//
// Job: {package, library, contextLength, nodeModules, output, steps: [{ids, clear, chunk}]}; see runners.py.
// Writes N.f32 (logits after step N), N.layers.f32 (residual streams, of a probe) and result.json, and
// exits with 1 if anything failed or any WebGPU error stayed uncaptured.
import fs from "node:fs/promises";
import path from "node:path";
import {
  ALL_FEATURES,
  loadDawn,
  loadRuntime,
  openDevice,
  pollGently,
  readJob,
  runJob,
  settle,
  startDawn,
} from "./webgpu_device.mjs";
import { dispose, tensorsOf, WebGPUModel } from "./webgpu_model.mjs";

const job = readJob();

/** What smaller subgroups than the kernels' answer is undefined: better nothing than that. */
async function checkSubgroups(smallest) {
  const { build } = JSON.parse(await fs.readFile(path.join(job.package, "provenance.json"), "utf8"));
  const asked = build?.requirements?.subgroup_size ?? 0;
  if (asked > 0 && !(smallest >= asked)) {
    const found =
      smallest === undefined ? "the adapter does not report how many they have" : `here they may have ${smallest}`;
    throw new Error(`it was made for subgroups of ${asked} threads or more, and ${found}`);
  }
}

/** Outputs behind the last token of a step: logits, then the residual stream of each layer. */
async function run(model, { ids, clear, chunk }) {
  if (clear) model.clear();
  if (chunk !== 0) return model.prompt(ids, Math.min(chunk ?? model.chunkSize, model.chunkSize), tensorsOf);
  let outputs;
  for (const id of ids) {
    dispose(outputs);
    outputs = model.decode(id, tensorsOf);
    await model.gpu.sync();
  }
  return outputs;
}

async function write(name, arrays) {
  const parts = arrays.map((values) => Buffer.from(values.buffer, values.byteOffset, values.byteLength));
  await fs.writeFile(path.join(job.output, name), Buffer.concat(parts));
}

async function main() {
  pollGently();
  startDawn(await loadDawn(job.nodeModules), { enable: ALL_FEATURES });
  const tvmjs = loadRuntime(job.nodeModules);
  const opened = await openDevice(tvmjs);
  const { device, info } = opened;
  await checkSubgroups(info.subgroupMinSize);
  const { library, contextLength } = job;
  const model = await new WebGPUModel().open(job.package, { tvmjs, device, library, contextLength });
  const layers = [];
  for (const [index, step] of job.steps.entries()) {
    const values = [];
    for (const tensor of await run(model, step)) values.push(await model.read(tensor));
    await settle(opened);
    const [logits, ...hidden] = values;
    await write(`${index}.f32`, [logits]);
    if (hidden.length) await write(`${index}.layers.f32`, hidden);
    layers.push(hidden.length);
  }
  const names = [info.device, info.description].filter(Boolean);
  return { device: names.join(", ") || info.vendor || "unknown", layers };
}

await runJob(job, main);
