// Runs a list of steps on one package on Dawn in Node. usage: node dawn_driver.mjs JOB.json
//
// Job: {package, library, contextLength, output, steps}. Steps, by `op`:
//   prefill {ids, chunk?, save?}    decode {id, save?}    clear    pop {count}
//   greedy {ids, count, stop?}      prompt, then up to `count` greedy tokens; the stop token is kept
//   renew {contextLength?, chunk?}                        a fresh state
//   keep {name}     the state's checkpoint                restore {name, change?}    into the state
//   driver                                                what the library tells a driver of it
//   sample {logits, temperature, topP, uniforms}          adjust {function, logits, inputs, save}
// `save` and `logits` are names of float32 files in the output folder (`logits` may lie there before).
// Writes result.json to the output folder and exits with 1 if anything failed or any WebGPU error
// stayed uncaptured.
import fs from "node:fs/promises";
import path from "node:path";
import { counts, errors, openDevice, release, settle } from "./dawn_gpu.mjs";
import { DawnModel, tvmjs } from "./dawn_model.mjs";
import { Checkpoints } from "./dawn_checkpoints.mjs";
import { describe } from "./dawn_exports.mjs";

const job = JSON.parse(await fs.readFile(process.argv[2], "utf8"));
const file = (name) => path.join(job.output, `${name}.f32`);
const log = [];
const checkpoints = new Checkpoints();
const logger = (...args) => log.push(args.join(" "));

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

const operations = {
  async prefill(model, { ids, chunk, save: name }) {
    await save(name, await model.prefill(ids, chunk));
  },
  async decode(model, { id, save: name }) {
    await save(name, await model.decode(id));
  },
  async clear(model) {
    model.clear();
  },
  async pop(model, { count }) {
    model.pop(count);
  },
  async greedy(model, { ids, count, stop = [] }) {
    const tokens = [argmax(await model.prefill(ids))];
    while (tokens.length < count && !stop.includes(tokens.at(-1))) {
      tokens.push(argmax(await model.decode(tokens.at(-1))));
    }
    return { tokens };
  },
  async renew(model, { contextLength = job.contextLength, chunk }) {
    model.renew(contextLength, chunk);
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
  async sample(model, { logits, temperature, topP, uniforms, save: name }) {
    const drawn = await model.sample(await load(logits), temperature, topP, uniforms);
    await save(name, drawn.probabilities);
    return { tokens: drawn.tokens };
  },
  async adjust(model, { function: name, logits, inputs, save: target }) {
    await save(target, await model.adjust(name, await load(logits), inputs));
  },
};

async function main() {
  const { device, description } = await openDevice(tvmjs, logger);
  const started = performance.now();
  const model = await DawnModel.load(job.package, job.library, device, logger, job.contextLength);
  const loadMs = performance.now() - started;
  const results = [];
  for (const step of job.steps) {
    const before = { ...counts };
    const result = (await operations[step.op](model, step)) ?? {};
    await settle(device);
    if (errors.length) throw new Error(`WebGPU error in step ${JSON.stringify(step).slice(0, 200)}`);
    const used = Object.fromEntries(Object.entries(counts).map(([key, n]) => [key, n - before[key]]));
    results.push({ ...result, ...used });
  }
  return { device: description, loadMs, prefillChunkSize: model.chunkSize, results };
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
