// Measures one package for webgpu on Dawn in Node; prints one JSON line per measurement to stdout and a
// table to stderr. usage: node bench.mjs --package DIR [options]; see ../README.md for what is measured.
import { parseArgs } from "node:util";
import { settle } from "../../gemma4_compile/verification/webgpu_device.mjs";
import { readBandwidth } from "./bandwidth.mjs";
import { nvidiaSmi, openDevice, runScript } from "./device.mjs";
import { Heater } from "./heater.mjs";
import { Model, weightBytesPerToken } from "./model.mjs";
import { measureDecode, measurePrefill, measureSmoke } from "./measure.mjs";
import { commonFields, featuresOf } from "./provenance.mjs";
import { measureDraft, measureVerify } from "./rounds.mjs";
import { namePipelines } from "./recorder.mjs";
import { decodeSummary, kernelTable } from "./table.mjs";
import { Filler } from "./weights.mjs";

const MOST_ROWS = 9; // of a step that checks guesses
const HEATING_MS = 50; // longer than encoding a sample takes

const { values: options } = parseArgs({
  options: {
    package: { type: "string" },
    weights: { type: "string", default: "synthetic" }, // or "package": read its shards
    context: { type: "string", default: "32" }, // lengths, separated by commas
    capacity: { type: "string" }, // tokens that the KV state holds; what the package was compiled for
    prefill: { type: "string", default: "0" }, // tokens of the prompt, 0 for no measurement
    verify: { type: "string" }, // rows of a step that checks guesses, separated by commas; a library with a drafter
    tokens: { type: "string", default: "32" }, // decoded in each sample and in the smoke run
    repeats: { type: "string", default: "5" },
    "active-experts": { type: "string", default: "8" }, // used per token, where there are experts
    "skip-validation": { type: "boolean", default: false },
    "no-kernels": { type: "boolean", default: false }, // no time by kernel
    "no-sampler": { type: "boolean", default: false }, // its compilation takes lavapipe a minute
    commit: { type: "string", default: "unknown" },
  },
});

/** Memory that the device lost since `before`, by the driver's count and by WebGPU's. */
function memory({ ledger }, before) {
  const now = nvidiaSmi();
  return {
    buffers_bytes: ledger.liveBytes,
    buffers_peak_bytes: ledger.peakBytes,
    driver_bytes: now && before ? now.usedBytes - before.usedBytes : null,
  };
}

async function main() {
  if (!options.package) throw new Error("--package DIR is missing");
  const repeats = Number(options.repeats);
  const tokens = Number(options.tokens);
  const say = (text) => process.stderr.write(`${text}\n`);
  const empty = nvidiaSmi();
  const opened = await openDevice({
    skipValidation: options["skip-validation"],
    features: featuresOf(options.package),
  });
  const { device, description } = opened;
  say(`device: ${description.name}, driver ${description.driver}`);
  namePipelines();
  const common = commonFields(options, description);
  const emit = (measure, values) => process.stdout.write(`${JSON.stringify({ ...common, measure, ...values })}\n`);

  const before = nvidiaSmi();
  const bandwidth = await readBandwidth(device, new Filler(device));
  emit("read_bandwidth", {
    bytes_per_second: bandwidth.bytesPerSecond,
    buffer_bytes: bandwidth.bytes,
    features: description.features,
  });
  say(`read bandwidth: ${(bandwidth.bytesPerSecond / 1e9).toFixed(0)} GB/s`);
  await settle(opened);

  const capacity = options.capacity && Number(options.capacity);
  const model = await Model.load(options.package, opened, { weights: options.weights, capacity });
  await settle(opened);
  const { resources } = model.metadata.artifact;
  const planned = resources.estimated_device_memory_bytes;
  const loaded = memory(opened, before);
  emit("load", {
    seconds: model.loadSeconds,
    library_bytes: model.libraryBytes,
    capacity: model.contextLength,
    planned_memory_bytes: planned,
    memory: loaded,
    memory_from_start: memory(opened, empty),
    state_bytes: model.stateBytes,
  });
  say(
    `loaded in ${Object.values(model.loadSeconds)
      .reduce((a, b) => a + b, 0)
      .toFixed(2)} s; buffers ` +
      `${(loaded.buffers_bytes / 2 ** 20).toFixed(0)} MiB, planned ${(planned / 2 ** 20).toFixed(0)} MiB`,
  );

  if (options.verify && !model.metadata.drafter) throw new Error(`--verify: ${options.package} has no drafter`);

  const smoke = await measureSmoke(model, tokens);
  await settle(opened);
  emit("smoke", { ...smoke, planned_memory_bytes: planned, memory: memory(opened, before) });
  say(`decoded ${tokens} tokens: ${smoke.finite ? "all logits finite" : "LOGITS NOT FINITE"}`);

  const read = weightBytesPerToken(model.metadata, Number(options["active-experts"]));
  const heater = await Heater.make(device, description.onCpu ? 0 : HEATING_MS);
  const settings = {
    heater,
    repeats,
    tokens,
    kernels: !options["no-kernels"],
    sampler: !options["no-sampler"],
  };
  for (const asked of options.context.split(",").map(Number)) {
    const context = Math.min(asked, model.contextLength - tokens - 1);
    const decode = await measureDecode(model, context, settings);
    await settle(opened);
    const rate = (read / decode.replayed_ms.median) * 1000;
    heater.start();
    emit("decode", {
      context,
      ...decode,
      clocks_mhz: nvidiaSmi()?.clocksMhz ?? null,
      weight_bytes_per_token: read,
      weight_bytes_per_second: Math.round(rate),
      share_of_read_bandwidth: Number((rate / bandwidth.bytesPerSecond).toFixed(4)),
    });
    say(decodeSummary(context, decode, rate));
    say(kernelTable(decode.kernels));
    if (decode.sampler) say(`sampler\n${kernelTable(decode.sampler.kernels)}`);
  }
  const drafting = async (measure, values) => {
    await settle(opened);
    emit(measure, values);
    const { rows = 0, context, launches, replayed_ms: time, kernels } = values;
    say(`\n${measure} ${rows || ""} after ${context}: ${launches} launches, replayed ${time.median.toFixed(3)} ms`);
    say(kernelTable(kernels));
  };
  if (options.verify) {
    const context = Math.min(...options.context.split(",").map(Number), model.contextLength - MOST_ROWS);
    for (const rows of options.verify.split(",").map(Number)) {
      await drafting("verify", await measureVerify(model, context, rows, settings));
    }
    await drafting("draft", await measureDraft(model, context, settings));
  }
  const prompt = Math.min(Number(options.prefill), model.contextLength - 1);
  if (prompt > 0) {
    const prefill = await measurePrefill(model, prompt, settings);
    await settle(opened);
    emit("prefill", prefill);
    say(
      `\nprefill ${prompt}: ${prefill.tokens_per_second} tok/s through tvmjs, ` +
        `${prefill.replayed_tokens_per_second} replayed, ${prefill.launches} launches`,
    );
    say(kernelTable(prefill.kernels));
  }
  emit("memory", { planned_memory_bytes: planned, memory: memory(opened, before) });
  if (!smoke.finite) throw new Error("some logits are not finite");
}

await runScript(main);
