// A long conversation on one package on Dawn in Node, with the module `gemma4-web/fast` or without.
// usage: node fast_conversation.mjs JOB.json
//
// Job: {package, output, fast?: path of fast.js, capacity, chat: "long" | "short", readLogits, disableAt?}. The calls
// are the client's, in its order: sampled on the device by its three functions, the token read back. With
// `readLogits` the logits are read after that, which a module that ran ahead has to make right.
// Writes result.json: {steps: ["name token digest", ...], stats, errors, msPerToken}.
import { createHash } from "node:crypto";
import fs from "node:fs/promises";
import path from "node:path";
import { pathToFileURL } from "node:url";
import { errors, openDevice, release, settle } from "./dawn_gpu.mjs";

const job = JSON.parse(await fs.readFile(process.argv[2], "utf8"));
const fast = job.fast ? await import(pathToFileURL(job.fast)) : undefined;
const { tvmjs } = await import("../../benchmarks/webgpu/packages.mjs");
const { Model } = await import("../../benchmarks/webgpu/model.mjs");

const { device } = await openDevice(tvmjs, () => {});
const model = await Model.load(job.package, { device, ledger: { capture: (action) => ({ result: action(), buffers: [] }) } }, {
  weights: "package", capacity: job.capacity,
});
const { tvm } = model;
const named = (find) => tvm.detachFromCurrentScope((tvm.beginScope(), find())); // kept for good
const bias = named(() => model.vm.getFunction("apply_logit_bias_inplace"));
const penalty = named(() => model.vm.getFunction("apply_penalty_inplace"));
const bitmask = named(() => model.vm.getFunction("apply_bitmask_inplace"));
const popn = named(() => tvm.getGlobalFunc("vm.builtin.kv_state_popn"));

const digest = (values) => createHash("sha256").update(Buffer.from(values.buffer, values.byteOffset, values.byteLength)).digest("hex").slice(0, 16);
const steps = [];
const topP = named(() => tvm.empty([1], "float32", model.gpu));
const sampleIndex = named(() => tvm.empty([1], "int32", model.gpu).copyFrom([0]));
const vocabulary = () => model.vocabulary;

/** The client's changes of the logits, on the device. */
const CHANGES = {
  bias: (logits) => bias(logits, model.upload([2], "int32", [0, 0]), model.upload([2], "int32", [110, 111]), model.upload([2], "float32", [5, -5])),
  penalty: (logits) => penalty(logits, model.upload([1], "int32", [0]), model.upload([2], "int32", [0, 0]),
    model.upload([2], "int32", [112, 113]), model.upload([2], "int32", [1, 3]), model.upload([1, 3], "float32", [0.5, 0.5, 1.1])),
  bitmask: (logits) => bitmask(logits, model.upload([1], "int32", [0]),
    model.upload([1, logits.shape[1] / 32], "int32", Array.from({ length: logits.shape[1] / 32 }, (_, i) => (i < 8 ? -1 : 0)))),
};

/** As the client samples: `tvm.uniform` draws the random number, the top_p tensor is written anew each time. */
async function choose(logits, name, { temperature = 1, share = 0.95, change, probabilities = false, look = job.readLogits } = {}) {
  const [vocab] = logits.shape.slice(-1);
  let copied;
  let chances;
  model.scoped(() => {
    if (change) CHANGES[change](logits.view([1, vocab]));
    const heat = model.upload([1], "float32", [Math.max(1e-6, temperature)]);
    const probs = model.functions.softmax_with_temperature(logits.view([1, 1, vocab]), heat).view([1, vocab]);
    const sorted = model.functions.argsort_probs(probs);
    const uniform = tvm.uniform([1], 0, 1, model.gpu);
    topP.copyFrom(Float32Array.of(share));
    const drawn = model.functions.sample_with_top_p(sorted.get(0), sorted.get(1), uniform, sampleIndex, topP);
    copied = tvm.detachFromCurrentScope(tvm.empty([1], "int32", tvm.cpu()).copyFrom(drawn));
    if (probabilities) chances = tvm.detachFromCurrentScope(tvm.empty([1, vocab], "float32", tvm.cpu()).copyFrom(probs));
  });
  await model.gpu.sync();
  const [token] = copied.toArray();
  copied.dispose();
  let line = `${name} ${token}`;
  if (chances) {
    line += ` ${digest(chances.toArray())}`;
    chances.dispose();
  }
  if (look) line += ` ${digest(await model.read(logits))}`;
  else logits.dispose();
  steps.push(line);
  return token;
}

async function turn(name, ids, count, options) {
  let token;
  for (let start = 0; start < ids.length; start += model.chunkSize) {
    const logits = model.prefill(ids.slice(start, start + model.chunkSize));
    token = await choose(logits, `${name}:prefill`, options);
  }
  for (let i = 0; i < count; i++) {
    token = await choose(model.decode(token), `${name}:${i}`, { ...options, look: options?.lookEvery ? i % options.lookEvery === 3 : options?.look ?? job.readLogits });
  }
  return token;
}

const prompt = (length, from = 3) => Array.from({ length }, (_, i) => from + ((i * 37) % 200));

async function longConversation() {
  tvm.setSeed(11);
  model.restart(0);
  await turn("first", prompt(20), 220); // past window and ring
  await turn("second turn", prompt(7, 9), 40);
  tvm.setSeed(12);
  model.restart(0);
  await turn("greedy", prompt(33, 5), 60, { temperature: 0 });
  await turn("bias", prompt(50, 4), 30, { change: "bias" });
  await turn("penalty", prompt(12, 4), 30, { change: "penalty" });
  await turn("bitmask", prompt(12, 7), 20, { change: "bitmask" });
  await turn("logprobs", prompt(9, 6), 20, { probabilities: true });
  await turn("looked at", prompt(9, 8), 30, { lookEvery: 9 });
  // Aborted in the middle: a step whose logits nobody reads, then everything anew.
  model.decode(17).dispose();
  model.restart(0);
  await turn("aborted", prompt(11), 25);
  model.scoped(() => popn(model.kv, tvm.scalar(0, "int64"), tvm.scalar(5, "int32")));
  let token = 21;
  for (let i = 0; i < 25; i++) token = await choose(model.decode(token), `popped:${i}`);
  // Several steps issued before anything is read: a forced continuation.
  const pending = [31, 32, 33].map((id) => model.decode(id));
  token = await choose(pending.pop(), "forced", { look: true });
  for (const logits of pending) steps.push(`held ${digest(await model.read(logits))}`);
  for (let i = 0; i < 20; i++) {
    const drawn = await choose(model.decode(token), `forced:${i}`);
    token = i % 7 === 5 ? (drawn + 1) % 200 : drawn; // now and then another token than the one that was drawn
  }
  // The sampling changes in the middle of a reply, and so does the seed.
  for (let i = 0; i < 40; i++) {
    if (i === 20) tvm.setSeed(99);
    token = await choose(model.decode(token), `changing:${i}`, { temperature: i < 10 ? 0.7 : 1.3, share: i % 15 === 14 ? 0.5 : 0.9 });
  }
  // Two steps whose logits are held at the same time.
  const first = model.decode(token);
  const second = model.decode(41);
  steps.push(`two ${digest(await model.read(first))} ${digest(await model.read(second))}`);
  model.restart(0);
  await turn("last", prompt(5), job.disableAt ? 10 : 30);
  if (job.disableAt) {
    fast?.disable();
    token = 5;
    for (let i = 0; i < 20; i++) token = await choose(model.decode(token), `last:${10 + i}`);
  }
}

async function timed(count) {
  tvm.setSeed(3);
  model.restart(0);
  let token = await choose(model.prefill(prompt(15)), "timed", { look: false });
  for (let i = 0; i < 20; i++) token = await choose(model.decode(token), "warm", { look: false });
  const cpu = process.cpuUsage();
  const start = performance.now();
  for (let i = 0; i < count; i++) token = await choose(model.decode(token), `timed:${i}`, { look: false });
  const { user, system } = process.cpuUsage(cpu);
  return { msPerToken: (performance.now() - start) / count, cpuMsPerToken: (user + system) / 1000 / count };
}

let outcome;
try {
  const timing = job.tokens ? await timed(job.tokens) : (await longConversation(), {});
  await settle(device);
  outcome = { steps, ...timing };
} catch (error) {
  outcome = { error: String(error?.stack ?? error), steps };
}
await fs.writeFile(path.join(job.output, "result.json"), JSON.stringify({ ...outcome, stats: fast?.stats(), errors }));
release();
process.exit(outcome.error || errors.length ? 1 : 0);
