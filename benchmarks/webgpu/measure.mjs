// The measurements: a decoded token, a prompt, and a run that only shows that a package works.
import { record } from "./recorder.mjs";
import { Replay, kernelFacts } from "./replay.mjs";
import { repeated, rounded, summary } from "./statistics.mjs";

const FIRST_ID = 107; // text tokens of Gemma's tokenizer start here
const IDS = 512;

const PEAKED = 0.1; // the temperature that makes a peak of a random model's flat logits

/** Text token of a position; which one matters to no measurement. */
export const tokenAt = (position) => FIRST_ID + ((position * 37) % IDS);

/** Records a step, replays it and, if asked, times its kernels; `step` returns a tensor to dispose of. */
export async function replayed(model, step, { repeats, kernels, heater }) {
  const recording = await record(async () => {
    const result = await step();
    await model.gpu.sync();
    return result;
  });
  const { launches, copies } = recording;
  const replay = new Replay(model.device, launches, heater);
  const samples = await replay.time(repeats);
  const rows = kernels ? await kernelRows(replay, launches, model.weightBuffers) : [];
  replay.dispose();
  recording.result?.dispose();
  recording.release();
  return { launches: launches.length, copies, samples, kernels: rows };
}

async function kernelRows(replay, launches, weightBuffers) {
  const { whole, kernels } = await replay.timeKernels();
  const rows = [...kernelFacts(launches, weightBuffers).values()].map((fact) => {
    const times = kernels.get(fact.kernel);
    return { ...fact, ...times, share: rounded(times.microseconds / (whole * 1000)) };
  });
  return rows.sort((a, b) => b.microseconds - a.microseconds);
}

/** One decoded token after `context` tokens: on the GPU alone, and as the client drives it. */
export async function measureDecode(model, context, settings) {
  const { repeats, tokens } = settings;
  model.restart(context);
  const step = await replayed(model, () => model.decode(tokenAt(context)), settings);

  const encodingMs = [];
  const perToken = async (after) => {
    model.restart(context);
    await model.gpu.sync();
    let encoding = 0;
    const start = performance.now();
    for (let i = 0; i < tokens; i++) {
      const begin = performance.now();
      const result = model.decode(tokenAt(context + i));
      encoding += performance.now() - begin;
      await after(result);
    }
    encodingMs.push(encoding / tokens);
    return (performance.now() - start) / tokens;
  };
  const driven = await repeated(repeats, () =>
    perToken(async (result) => {
      await model.gpu.sync();
      result.dispose();
    }),
  );
  const encoding = encodingMs.slice(1);
  const logitsRead = await repeated(repeats, () => perToken((result) => model.read(result)));
  const sampled =
    settings.sampler &&
    (await repeated(repeats, () =>
      perToken(async (result) => {
        await model.read(model.sample(result));
        result.dispose();
      }),
    ));
  return {
    capacity: model.contextLength,
    repeats,
    tokens_per_sample: tokens,
    launches: step.launches,
    copies: step.copies,
    replayed_ms: summary(step.samples),
    driven_ms: summary(driven), // the client's calls, then waiting for the GPU
    encoding_ms: summary(encoding), // of which until the calls returned
    logits_read_ms: summary(logitsRead), // and the logits copied to the host
    sampled_ms: sampled && summary(sampled), // or a token drawn on the device and read: the client's way
    kernels: step.kernels,
    sampler: settings.sampler && (await measureSampler(model, context, settings)),
  };
}

/** The client's three sampling calls on the logits of one token, as they are and with a peak. */
async function measureSampler(model, context, settings) {
  model.restart(context);
  const logits = model.decode(tokenAt(context));
  await model.gpu.sync();
  const { launches, samples, kernels } = await replayed(model, () => model.sample(logits), settings);
  const sharp = () => model.sample(logits, { temperature: PEAKED });
  const peaked = await replayed(model, sharp, { ...settings, kernels: false });
  logits.dispose();
  return { launches, replayed_ms: summary(samples), peaked_ms: summary(peaked.samples), kernels };
}

/** A prompt of `count` tokens in chunks, from the first upload until the GPU is done. */
export async function measurePrefill(model, count, settings) {
  const { repeats } = settings;
  const ids = Array.from({ length: count }, (_, position) => tokenAt(position));
  const chunks = [];
  for (let start = 0; start < count; start += model.chunkSize) {
    chunks.push(ids.slice(start, start + model.chunkSize));
  }
  const driven = await repeated(repeats, async () => {
    model.restart(0);
    await model.gpu.sync();
    const start = performance.now();
    for (const chunk of chunks) model.prefill(chunk).dispose();
    await model.gpu.sync();
    return performance.now() - start;
  });
  // Each chunk is replayed right after it ran, while the state holds its positions.
  model.restart(0);
  const parts = [];
  for (const [index, chunk] of chunks.entries()) {
    const kernels = settings.kernels && index === chunks.length - 1;
    parts.push(await replayed(model, () => model.prefill(chunk), { ...settings, kernels }));
  }
  const replayedMs = parts[0].samples.map((_, i) => parts.reduce((sum, { samples }) => sum + samples[i], 0));
  const drivenMs = summary(driven);
  const total = summary(replayedMs);
  return {
    tokens: count,
    chunk: model.chunkSize,
    repeats,
    launches: parts.reduce((sum, part) => sum + part.launches, 0),
    driven_ms: drivenMs,
    replayed_ms: total,
    tokens_per_second: rounded((count / drivenMs.median) * 1000),
    replayed_tokens_per_second: rounded((count / total.median) * 1000),
    kernels: parts.at(-1).kernels, // of the last chunk
  };
}

/** A short prompt and greedy tokens after it: are all logits finite, and how large are they? */
export async function measureSmoke(model, tokens) {
  model.restart(0);
  const prompt = [2, ...Array.from({ length: 15 }, (_, i) => tokenAt(i))];
  let finite = true;
  let largest = 0;
  const chosen = [];
  let values = await model.read(model.prefill(prompt.slice(0, model.chunkSize)));
  for (let i = 0; i <= tokens; i++) {
    let best = 0;
    for (let id = 0; id < values.length; id++) {
      if (!Number.isFinite(values[id])) finite = false;
      largest = Math.max(largest, Math.abs(values[id]));
      if (values[id] > values[best]) best = id;
    }
    chosen.push(best);
    if (i < tokens) values = await model.read(model.decode(best));
  }
  return {
    decoded: tokens,
    finite,
    largest_logit: rounded(largest),
    different_tokens: new Set(chosen).size,
  };
}
