// Runs a list of steps on one package on Dawn in Node. usage: node dawn_driver.mjs JOB.json
//
// Job: {package, library, contextLength, output, steps, emulated}; `emulated` subgroups have so many threads, 0 are the
// device's own. Steps, by `op`:
//   prefill {ids, chunk?, save?}    decode {id, save?}    clear    pop {count}
//   rows {rows, count, modality, save?}                   rows of a medium, from a float32 file
//   window {rows}    a window in the place of the per-layer table; 0: the table again
//   verify {ids, save}              logits after each of a few tokens, of a package with a drafter
//   greedy {ids, count, stop?}      prompt, then up to `count` greedy tokens; the stop token is kept
//   renew {contextLength?, chunk?, sequences?}            a fresh state
//   add {sequence}    fork {sequence, position}    use {sequence}     go on with another sequence
//   remove {sequence}
//   keep {name}     the state's checkpoint                restore {name, change?}    into the state
//   picture {blocks, size}   so many black blocks, side by side, of `size` values
//   driver                                                what the library tells a driver of it
//   sample {logits, temperature, topP, uniforms}          adjust {function, logits, inputs, save}
// `save`, `logits` and `rows` are names of float32 files in the output folder (the last two may lie there before).
// Writes result.json to the output folder and exits with 1 if anything failed or any WebGPU error
// stayed uncaptured.
import fs from "node:fs/promises";
import path from "node:path";
import { loadRuntime, readJob, settle } from "../../gemma4_compile/verification/webgpu_device.mjs";
import { dispose, WebGPUModel } from "../../gemma4_compile/verification/webgpu_model.mjs";
import { Checkpoints } from "./dawn_checkpoints.mjs";
import { describe } from "./dawn_exports.mjs";
import { counts, logger, NODE_MODULES, openDevice, runJob } from "./dawn_gpu.mjs";
import { Window } from "./dawn_window.mjs";
import { emulateSubgroups } from "./subgroups.mjs";

const job = readJob();
const file = (name) => path.join(job.output, `${name}.f32`);
const checkpoints = new Checkpoints();

async function save(name, values) {
  if (name !== undefined) {
    await fs.writeFile(file(name), Buffer.from(values.buffer, values.byteOffset, values.byteLength));
  }
}

async function load(name) {
  const data = await fs.readFile(file(name));
  return new Float32Array(data.buffer.slice(data.byteOffset, data.byteOffset + data.byteLength));
}

function argmax(values) {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i] > values[best]) best = i;
  return best;
}

/** A prompt in chunks, where there is a window with the rows of each. */
function prompt(model, ids, chunk = model.chunkSize) {
  if (!model.window) return model.prompt(ids, chunk);
  let logits;
  for (let start = 0; start < ids.length; start += chunk) {
    logits?.dispose();
    const part = ids.slice(start, start + chunk);
    model.window.put(part);
    logits = model.prefill(part);
  }
  return logits;
}

const operations = {
  async prefill(model, { ids, chunk, save: name }) {
    await save(name, await model.read(prompt(model, ids, chunk)));
  },
  async window(model, { rows }) {
    model.window?.close();
    model.window = rows ? await Window.open(model, job.package, rows) : undefined;
  },
  async rows(model, { rows, count, modality, save: name }) {
    const values = await load(rows);
    const ids = new Array(count).fill(0);
    model.window?.put(ids, modality);
    await save(name, await model.read(model.prefillRows(values, values.length / count, ids, modality)));
  },
  async decode(model, { id, save: name }) {
    model.window?.put([id]);
    await save(name, await model.read(model.decode(id)));
  },
  async verify(model, { ids, save: name }) {
    const count = ids.length;
    model.window?.put(ids);
    const logits = model.scoped(() => {
      const embeddings = model.functions.embed_tokens(model.upload([count], "int32", ids), model.params);
      const rows = embeddings.view([1, count, embeddings.shape[1]]);
      model.beginForward(count);
      const idRow = model.upload([1, count], "int32", ids);
      const outputs = model.named("verify_tokens")(rows, idRow, model.kv, model.params);
      model.state.end_forward(model.kv);
      return outputs.get(0);
    });
    await save(name, await model.read(logits));
  },
  async clear(model) {
    model.clear();
  },
  async pop(model, { count }) {
    model.pop(count);
  },
  async greedy(model, { ids, count, stop = [] }) {
    const tokens = [argmax(await model.read(model.prompt(ids)))];
    while (tokens.length < count && !stop.includes(tokens.at(-1))) {
      tokens.push(argmax(await model.read(model.decode(tokens.at(-1)))));
    }
    return { tokens };
  },
  async renew(model, { contextLength = job.contextLength, chunk, sequences }) {
    model.renew(contextLength, chunk, sequences);
  },
  async add(model, { sequence }) {
    model.add(sequence);
  },
  async fork(model, { sequence, position }) {
    model.fork(sequence, position);
  },
  async use(model, { sequence }) {
    model.sequence = sequence;
  },
  async remove(model, { sequence }) {
    model.remove(sequence);
  },
  async keep(model, { name }) {
    return checkpoints.keep(model, name);
  },
  async restore(model, { name, change }) {
    return checkpoints.restore(model, name, change);
  },
  async driver(model) {
    return describe(model);
  },
  async picture(model, { blocks, size }) {
    const cells = new Int32Array(2 * blocks).map((_, i) => (i % 2 ? 0 : i / 2));
    const rows = model.embedPicture([blocks, size], new Float32Array(blocks * size), cells);
    await model.read(rows);
  },
  async sample(model, { logits, temperature, topP, uniforms, save: name }) {
    const values = await load(logits);
    const tensor = model.scoped(() => model.upload([1, 1, values.length], "float32", values));
    const probabilities = model.softmax(tensor, temperature);
    tensor.dispose();
    const drawn = uniforms.map((uniform) => {
      const token = model.pick(probabilities, uniform, topP);
      const host = model.toHost(token);
      token.dispose();
      return host;
    });
    await save(name, await model.read(probabilities));
    const tokens = drawn.map((token) => token.toArray()[0]);
    dispose(drawn);
    return { tokens };
  },
  async adjust(model, { function: name, logits, inputs, save: target }) {
    const values = await load(logits);
    const changed = model.scoped(() => {
      const tensor = model.upload([1, 1, values.length], "float32", values);
      const rest = inputs.map(([dtype, shape, numbers]) => model.upload(shape, dtype, numbers));
      model.named(name)(tensor.view([1, values.length]), ...rest);
      return tensor;
    });
    await save(target, await model.read(changed));
  },
};

async function main() {
  const tvmjs = loadRuntime(NODE_MODULES);
  const opened = await openDevice(tvmjs);
  const { device, description } = opened;
  const { library, contextLength, emulated } = job;
  const exchanged = { exchanges: 0 };
  if (emulated) emulateSubgroups(emulated, exchanged);
  const started = performance.now();
  const model = await new WebGPUModel().open(job.package, { tvmjs, device, library, contextLength, log: logger });
  const loadMs = performance.now() - started;
  const results = [];
  for (const step of job.steps) {
    const before = { ...counts };
    const result = (await operations[step.op](model, step)) ?? {};
    await settle(opened, ` in step ${JSON.stringify(step).slice(0, 200)}`);
    const used = Object.fromEntries(Object.entries(counts).map(([key, n]) => [key, n - before[key]]));
    results.push({ ...result, ...used });
  }
  return { device: { ...description, ...exchanged }, loadMs, prefillChunkSize: model.chunkSize, results };
}

await runJob(job, main);
