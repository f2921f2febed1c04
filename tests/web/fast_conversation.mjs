// Conversations with one package on Dawn in Node, with the module `gemma4-web/fast` or without.
// usage: node fast_conversation.mjs JOB.json
//
// Job: {package, library, output, fast?: path of fast.js, capacity, scene, fake?, count?, drafts?}. With `drafts` the
// package's drafter is used, or that at `drafter`: so many guesses a round, 0 for as many as pay. With `rows` (of
// fake_files.mjs) the table of per-layer embeddings is kept off the device. Scenes:
//   rows     prompts at and beyond a chunk's end, sampled and greedy replies, logits that are looked at, rows of a
//            picture; then the module is switched off
//   long     turns, resets, aborts, pops, forced tokens, penalties, wrapped rings, values that are looked at late
//   dialogues  greedy replies to `prompts` up to a token of `stops`, at most `count` tokens each
//   drafted  greedy and sampled turns, pops, aborts, seeds and samplings that change, and a context to its end
//   begun    prompts that begin alike and part, one after another in one state; `kept` bytes are for their beginnings; `unlooked`: tokens alone
//   lasting  what prompts begin with is kept in storage, for models that are loaded later; a file of it is damaged
//   short    a reply; with `fake` in a client or with a library that the module does not know (FAKES below)
//   copied   the state is copied within steps, as the client does for resumable replies
//   raced    a state that is cleared, and a prompt, while a token of before is still waited for
//   profiled a reply three times, with the module for the times of its kernels, and then another turn
//   disable  the module is switched off in the middle of a reply
//   two      two models in one thread, a token of each in turn
//   states   two conversations in one model, the second one's first guesses while the first holds logits
//   lost     the device goes in the middle of a reply; a model on a new device goes on
//   leak     `count` replies of `tokens`, with kernels that do nothing: buffers and heap afterwards
//   timed    `count` tokens: wall and CPU time of each
// The calls are the client's, in its order: sampled on the device by its three functions, the token read back.
// Writes result.json: {steps: ["name token digest", ...], stats, errors, ...}.
import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";
import { loadRuntime, readJob, settle } from "../../gemma4_compile/verification/webgpu_device.mjs";
import { WebGPUModel } from "../../gemma4_compile/verification/webgpu_model.mjs";
import { Checkpoints } from "./dawn_checkpoints.mjs";
import { counts, errors, logger, NODE_MODULES, openDevice, runJob } from "./dawn_gpu.mjs";
import { begun, lasting } from "./fast_beginnings.mjs";
import { countBuffers, emptyKernels, FAKES, leak } from "./fast_fakes.mjs";
import { chunkFiles, fakeFiles } from "./fake_files.mjs";

const job = readJob();
FAKES[job.fake]?.below?.();
const live = { buffers: 0 };
if (job.scene === "leak") {
  emptyKernels();
  countBuffers(live);
}
const fast = job.fast ? await import(pathToFileURL(job.fast)) : undefined;
if (job.kept) fast?.keepBeginnings(job.kept);
if (job.scene === "lasting") fakeFiles(job.output);
const tvmjs = { ...loadRuntime(NODE_MODULES) };
FAKES[job.fake]?.above?.(tvmjs);

const fetchFile = async (url) => new Response(await readFile(new URL(url)));
/** A package on a device of its own, with what the client keeps besides. */
async function load() {
  const { device } = await openDevice(tvmjs);
  if (job.rows) {
    fakeFiles(job.output, job.rows);
    hasRowsOnHost = await fast?.useRowsFromHost(pathToFileURL(job.package).href, { fetch: fetchFile });
  }
  const model = await new WebGPUModel().open(job.package, {
    tvmjs,
    device,
    library: job.library,
    contextLength: job.capacity,
    log: logger,
  });
  if (job.drafts !== undefined) {
    const wants = { fetch: fetchFile, ...(job.drafts && { drafts: job.drafts }) };
    hasDrafter = await fast?.useDrafter(pathToFileURL(`${job.drafter ?? job.package}/`).href, wants);
  }
  return { device, model, tvm: model.tvm };
}

let hasDrafter;
let hasRowsOnHost;
let { device, model, tvm } = await load();
const digest = (values) =>
  createHash("sha256")
    .update(Buffer.from(values.buffer, values.byteOffset, values.byteLength))
    .digest("hex")
    .slice(0, 16);
const steps = [];

/** The client's changes of the logits, on the device. */
const CHANGES = {
  bias: (logits) =>
    model.named("apply_logit_bias_inplace")(
      logits,
      model.upload([2], "int32", [0, 0]),
      model.upload([2], "int32", [110, 111]),
      model.upload([2], "float32", [5, -5]),
    ),
  penalty: (logits) =>
    model.named("apply_penalty_inplace")(
      logits,
      model.upload([1], "int32", [0]),
      model.upload([2], "int32", [0, 0]),
      model.upload([2], "int32", [112, 113]),
      model.upload([2], "int32", [1, 3]),
      model.upload([1, 3], "float32", [0.5, 0.5, 1.1]),
    ),
  bitmask: (logits) =>
    model.named("apply_bitmask_inplace")(
      logits,
      model.upload([1], "int32", [0]),
      model.upload(
        [1, logits.shape[1] / 32],
        "int32",
        Array.from({ length: logits.shape[1] / 32 }, (_, i) => (i < 8 ? -1 : 0)),
      ),
    ),
};

/** Draws a token, with what a step of the conversation does besides. */
async function choose(
  logits,
  name,
  { temperature = 1, share = 0.95, change, probabilities = false, look = false } = {},
) {
  let chances;
  const token = await model.draw(logits, {
    temperature,
    topP: share,
    change: change && CHANGES[change],
    look: (probs) => {
      if (probabilities)
        chances = tvm.detachFromCurrentScope(tvm.empty(probs.shape, "float32", tvm.cpu()).copyFrom(probs));
    },
  });
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
    token = await choose(model.decode(token), `${name}:${i}`, {
      ...options,
      look: options?.lookEvery ? i % options.lookEvery === 3 : (options?.look ?? false),
    });
  }
  return token;
}

const prompt = (length, from = 3) => Array.from({ length }, (_, i) => from + ((i * 37) % 200));

async function longConversation() {
  tvm.setSeed(11);
  model.clear();
  await turn("first", prompt(20), 60); // past window and ring
  await turn("second turn", prompt(7, 9), 10);
  tvm.setSeed(12);
  model.clear();
  await turn("greedy", prompt(33, 5), 15, { temperature: 0 });
  await turn("bias", prompt(50, 4), 8, { change: "bias" });
  await turn("penalty", prompt(12, 4), 8, { change: "penalty" });
  await turn("bitmask", prompt(12, 7), 8, { change: "bitmask" });
  await turn("logprobs", prompt(9, 6), 8, { probabilities: true });
  await turn("looked at", prompt(9, 8), 20, { lookEvery: 9 });
  // Aborted in the middle: a step whose logits nobody reads, then everything anew.
  model.decode(17).dispose();
  model.clear();
  await turn("aborted", prompt(11), 10);
  model.pop(5);
  let token = 21;
  for (let i = 0; i < 12; i++) token = await choose(model.decode(token), `popped:${i}`);
  // Several steps issued before anything is read: a forced continuation.
  const pending = [31, 32, 33].map((id) => model.decode(id));
  token = await choose(pending.pop(), "forced", { look: true });
  for (const logits of pending) steps.push(`held ${digest(await model.read(logits))}`);
  for (let i = 0; i < 14; i++) {
    const drawn = await choose(model.decode(token), `forced:${i}`);
    token = i % 7 === 5 ? (drawn + 1) % 200 : drawn; // now and then another token than the one that was drawn
  }
  // The sampling changes in the middle of a reply, and so does the seed.
  for (let i = 0; i < 30; i++) {
    if (i === 15) tvm.setSeed(99);
    token = await choose(model.decode(token), `changing:${i}`, {
      temperature: i < 10 ? 0.7 : 1.3,
      share: i % 15 === 14 ? 0.5 : 0.9,
    });
  }
  // Two steps whose logits are held at the same time.
  const first = model.decode(token);
  const second = model.decode(41);
  steps.push(`two ${digest(await model.read(first))} ${digest(await model.read(second))}`);
  model.clear();
  await turn("last", prompt(5), 6);
}

async function reply(name, count, seed = 5, options = {}) {
  tvm.setSeed(seed);
  model.clear();
  return turn(name, prompt(15), count, options);
}

/** Replies of all kinds, without looking at logits, which other kernels sum in another order. */
async function drafted() {
  for (const temperature of [0, 1]) {
    tvm.setSeed(11);
    model.clear();
    const reply = { temperature };
    let token = await turn(`${temperature}:first`, prompt(20), 45, reply); // past window and ring
    token = await turn(`${temperature}:second`, prompt(7, 9), 12, reply); // the first was stopped somewhere
    model.pop(5);
    for (let i = 0; i < 14; i++) {
      if (i === 6) tvm.setSeed(99);
      token = await choose(model.decode(i === 10 ? 21 : token), `${temperature}:popped:${i}`, reply);
    }
    for (let i = 0; i < 18; i++) {
      // In the middle of a reply the sampling changes, and a step has a logit bias.
      const warmer = { temperature: i < 6 ? temperature : 0.8, share: i < 12 ? 0.95 : 0.6 };
      token = await choose(model.decode(token), `${temperature}:mixed:${i}`, {
        ...warmer,
        ...(i === 15 && { change: "bias" }),
      });
    }
    model.decode(17).dispose(); // aborted
    model.clear();
    await turn(`${temperature}:penalty`, prompt(12, 4), 4, { ...reply, change: "penalty" });
    await turn(`${temperature}:anew`, prompt(11), 8, reply);
  }
  model.renew(44);
  tvm.setSeed(3);
  await turn("to the end of the context", prompt(12, 30), 32, { temperature: 0 });
}

async function dialogues() {
  for (const [i, ids] of job.prompts.entries()) {
    model.clear();
    let token = await turn(`${i}`, ids, 0, { temperature: 0 });
    for (let k = 0; k < job.count && !job.stops.includes(token); k++)
      token = await choose(model.decode(token), `${i}:${k}`, { temperature: 0 });
  }
}

const SCENES = {
  dialogues,
  drafted,
  long: longConversation,
  async rows() {
    tvm.setSeed(3);
    model.clear();
    await turn("sampled", prompt(2 * model.chunkSize + 1), 14, { lookEvery: 5 });
    await turn("second", prompt(model.chunkSize, 9), 6, { temperature: 0 });
    model.clear();
    await turn("penalty", prompt(3), 4, { change: "penalty" });
    const [width] = model.scoped(() =>
      model.functions.embed_tokens(model.upload([1], "int32", [3]), model.params).shape.slice(1),
    );
    const picture = Float32Array.from({ length: 5 * width }, (_, i) => Math.sin(i));
    let token = await choose(model.prefillRows(picture, width, [7, 8, 9, 10, 11], 1), "picture", { look: true });
    fast?.disable();
    for (let i = 0; i < 4; i++) token = await choose(model.decode(token), `plain:${i}`, { look: i === 3 });
    await choose(model.prefill(prompt(9)), "plain prompt", { look: true });
  },
  short: () => reply("short", job.count ?? 24),
  begun: () => begun(model, turn, prompt, !job.unlooked),
  async lasting() {
    const next = async () => {
      if (fast) ({ device, model, tvm } = await load());
      return model;
    };
    return lasting(fast, turn, prompt, { model, next, folder: () => chunkFiles(job.output) });
  },
  async copied() {
    const checkpoints = new Checkpoints();
    const copy = async () => {
      tvm.beginScope();
      const { metadata } = await checkpoints.keep(model, "state");
      tvm.endScope();
      return metadata.written;
    };
    let token = await reply("begun", 12);
    for (let i = 0; i < 40; i++) {
      const logits = model.decode(token);
      if (i % 4 === 3) {
        const [written, later] = [await copy(), await copy()];
        if (written !== later) throw new Error(`step ${i}: ${written} rows were written, and ${later} a copy later`);
      }
      token = await choose(logits, `copied:${i}`);
    }
  },
  async raced() {
    const token = await reply("begun", 24);
    const late = choose(model.decode(token), "late");
    model.clear();
    const logits = model.prefill(prompt(9, 5));
    await late;
    let next = await choose(logits, "prompt");
    for (let i = 0; i < 12; i++) next = await choose(model.decode(next), `raced:${i}`);
  },
  async profiled() {
    await reply("before", 6);
    const asked = () => reply("asked", 10);
    const profile = await (fast?.profile(asked) ?? asked().then(asked).then(asked));
    await turn("after", prompt(8), 10);
    return { profile };
  },
  async disable() {
    let token = await reply("before", 15);
    fast?.disable();
    for (let i = 0; i < 12; i++) token = await choose(model.decode(token), `after:${i}`, { look: i % 4 === 1 });
  },
  async two() {
    const first = { device, model, tvm };
    const second = await load();
    const use = (engine) => ({ device, model, tvm } = engine);
    const tokens = [];
    for (const [i, engine] of [first, second].entries()) {
      use(engine);
      tokens[i] = await reply(`engine ${i}`, 4, 20 + i);
    }
    for (let i = 0; i < 30; i++) {
      for (const [k, engine] of [first, second].entries()) {
        use(engine);
        if (i % 3 !== 1 || k === 0) tokens[k] = await choose(model.decode(tokens[k]), `engine ${k}:${i}`);
      }
    }
  },
  async states() {
    const tokens = [await reply("state 0", 14)];
    const states = [model.kv, model.makeState(model.contextLength, model.chunkSize)];
    const step = async (k, name) => {
      model.kv = states[k];
      tokens[k] = await choose(model.decode(tokens[k]), `state ${k}:${name}`);
    };
    model.kv = states[1];
    model.clear();
    tokens[1] = await choose(model.prefill(prompt(11, 7)), "state 1");
    for (let i = 0; i < job.alone; i++) await step(1, i); // the module sees how its steps go
    for (let i = 0; i < 8; i++) await step(0, i);
    model.kv = states[0];
    const logits = model.decode(tokens[0]);
    model.kv = states[1];
    const others = model.decode(tokens[1]);
    tokens[0] = await choose(logits, "state 0:held");
    tokens[1] = await choose(others, "state 1:held");
    for (let i = 0; i < 20; i++) await step(i % 2, `turns ${i}`);
  },
  async lost() {
    let token = await reply("before", 15);
    const seen = [];
    device.destroy();
    for (let i = 0; i < 3; i++) {
      try {
        token = await choose(model.decode(token), `lost:${i}`);
        seen.push("answered");
      } catch (error) {
        seen.push(error.name);
        break;
      }
    }
    ({ device, model, tvm } = await load());
    steps.length = 0;
    // Greedy: a drawn number may lie between two tokens to the last bits of the logits.
    await reply("anew", 20, 5, { temperature: 0 });
    return { seen };
  },
  leak: () =>
    leak(job.count, live, async (i) => {
      steps.length = 0;
      model.clear();
      await turn("leak", prompt(3 + (i % 20)), job.tokens, { change: i % 5 === 4 ? "penalty" : undefined });
    }),
  async timed() {
    let token = await reply("warm", 20);
    const cpu = process.cpuUsage();
    const start = performance.now();
    for (let i = 0; i < job.count; i++) token = await choose(model.decode(token), `timed:${i}`);
    const { user, system } = process.cpuUsage(cpu);
    return { msPerToken: (performance.now() - start) / job.count, cpuMsPerToken: (user + system) / 1000 / job.count };
  },
};

const main = async () => {
  const found = await SCENES[job.scene]();
  await settle({ device, errors });
  return found;
};
await runJob(job, main, () => ({
  steps,
  hasDrafter,
  hasRowsOnHost,
  bufferBytes: counts.bufferBytes,
  stats: fast?.stats(),
}));
