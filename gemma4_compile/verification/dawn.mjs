// Runs a list of steps on one package on Dawn in Node. usage: node dawn.mjs JOB.json
//
// Job: {package, library, requirements, contextLength, nodeModules, output, steps, rounds}; requirements are what the
// library's kernels need of a device; a step is {ids, clear, chunk, follow, runs} or {embed}; see runners.py, and
// rounds.py for rounds. Writes N.f32 (logits after step N, or rows of a medium),
// N.layers.f32 (residual streams, of a probe), round-N.f32 (ids as floats) and result.json, and exits with 1 if anything
// failed or any WebGPU error stayed uncaptured.
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
import { runRounds } from "./webgpu_drafter.mjs";
import { dispose, tensorsOf, WebGPUModel } from "./webgpu_model.mjs";

const job = readJob();

/** Throws where the device lacks something. What smaller subgroups than the kernels' answer is undefined. */
function checkDevice({ features = [], subgroup_size: asked = 0 }, device, smallest) {
  const missing = features.filter((name) => !device.features.has(name));
  if (missing.length) throw new Error(`it needs WebGPU features that are not offered here: ${missing.join(", ")}`);
  if (asked > 0 && !(smallest >= asked)) {
    const found =
      smallest === undefined ? "the adapter does not report how many they have" : `here they may have ${smallest}`;
    throw new Error(`it was made for subgroups of ${asked} threads or more, and ${found}`);
  }
}

const embedded = new Map();

const valuesOf = async (name, part, ArrayType) => {
  const bytes = await fs.readFile(path.join(job.output, `${name}.${part}`));
  return new ArrayType(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength));
};

/** Rows of a picture or a sound on the host, computed once: {width, values}. */
async function rowsOf(model, { kind, name, shape }) {
  if (!embedded.has(name)) {
    const values = await valuesOf(name, "values", Float32Array);
    const positions = kind === "image" ? await valuesOf(name, "positions", Int32Array) : undefined;
    const rows = kind === "image" ? model.embedPicture(shape, values, positions) : model.embedSound(values);
    const [, width] = rows.shape;
    embedded.set(name, { width, values: await model.read(rows) });
  }
  return embedded.get(name);
}

/** Outputs after a prompt with media in it: as the client does it, texts and media are prefills of their own. */
async function mixed(model, ids, runs) {
  let outputs;
  const take = (next) => {
    dispose(outputs);
    outputs = next;
  };
  let begin = 0;
  for (const { start, count, first, modality, medium } of runs) {
    if (start > begin) take(model.prompt(ids.slice(begin, start), model.chunkSize, tensorsOf));
    const { width, values } = await rowsOf(model, medium);
    for (let done = 0; done < count; done += model.chunkSize) {
      const end = Math.min(done + model.chunkSize, count);
      const rows = values.subarray((first + done) * width, (first + end) * width);
      take(model.prefillRows(rows, width, ids.slice(start + done, start + end), modality, tensorsOf));
    }
    begin = start + count;
  }
  if (begin < ids.length) take(model.prompt(ids.slice(begin), model.chunkSize, tensorsOf));
  return outputs;
}

const largest = (values) => values.reduce((best, value, index) => (value > values[best] ? index : best), 0);

/** Outputs after the last token of a step: logits, then the residual stream of each layer. */
async function run(model, { ids, clear, chunk, follow, runs }, before) {
  if (clear) model.clear();
  if (follow) return model.decode(largest(before), tensorsOf);
  if (runs.length) return mixed(model, ids, runs);
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
  const { library, contextLength, requirements } = job;
  const opened = await openDevice(tvmjs, { features: requirements.features });
  const { device, info } = opened;
  checkDevice(requirements, device, info.subgroupMinSize);
  const model = await new WebGPUModel().open(job.package, { tvmjs, device, library, contextLength });
  const layers = [];
  let logits, hidden;
  for (const [index, step] of job.steps.entries()) {
    if (step.embed) {
      const { width, values } = await rowsOf(model, step.embed);
      await settle(opened);
      await write(`${index}.f32`, [values]);
      layers.push(values.length / width);
      continue;
    }
    const values = [];
    for (const tensor of await run(model, step, logits)) values.push(await model.read(tensor));
    await settle(opened);
    [logits, ...hidden] = values;
    await write(`${index}.f32`, [logits]);
    if (hidden.length) await write(`${index}.layers.f32`, hidden);
    layers.push(hidden.length);
  }
  const rounds = [];
  if (job.rounds) {
    await runRounds(model, job.package, job.rounds, async (index, arrays) => {
      await settle(opened);
      rounds.push(arrays.map((values) => values.length));
      await write(
        `round-${index}.f32`,
        arrays.map((values) => Float32Array.from(values)),
      );
    });
  }
  const names = [info.device, info.description].filter(Boolean);
  return { device: names.join(", ") || info.vendor || "unknown", layers, rounds };
}

await runJob(job, main);
