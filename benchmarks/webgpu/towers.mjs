// Measures what turns pictures and sounds into rows of the decoder, for one package for webgpu on Dawn in Node; prints
// one JSON line per measurement to stdout and a table to stderr. usage: node towers.mjs --package DIR [options]; see
// ../README.md for what is measured.
import { parseArgs } from "node:util";
import { settle } from "../../gemma4_compile/verification/webgpu_device.mjs";
import { nvidiaSmi, openDevice, runScript } from "./device.mjs";
import { Heater } from "./heater.mjs";
import { replayed } from "./measure.mjs";
import { Model } from "./model.mjs";
import { commonFields, featuresOf } from "./provenance.mjs";
import { namePipelines } from "./recorder.mjs";
import { repeated, rounded, summary } from "./statistics.mjs";
import { kernelTable } from "./table.mjs";
import { pictureOperations, soundOperations } from "./tower_operations.mjs";

const HEATING_MS = 50; // longer than encoding a sample takes
const SAMPLE_RATE_HZ = 16_000;
const CAPACITY = 512; // tokens of a state that nothing uses

const { values: options } = parseArgs({
  options: {
    package: { type: "string" },
    rows: { type: "string", default: "280" }, // of pictures, separated by commas; none for no picture
    seconds: { type: "string", default: "30" }, // of sounds, likewise
    repeats: { type: "string", default: "5" },
    "skip-validation": { type: "boolean", default: false },
    "no-kernels": { type: "boolean", default: false }, // no time by kernel
    commit: { type: "string", default: "unknown" },
  },
});

const numbers = (text) => text.split(",").filter(Boolean).map(Number);
const say = (text) => process.stderr.write(`${text}\n`);

/** Values between 0 and 1 in an order without a pattern. */
function noise(count) {
  let state = 1;
  return Float32Array.from({ length: count }, () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return state / 2 ** 32;
  });
}

/** A picture of `rows` blocks, in the grid that is closest to a square. */
function picture(model, rows) {
  const side = model.metadata.media.image.block_size;
  const across = Array.from({ length: rows }, (_, i) => i + 1).find((n) => rows % n === 0 && n * n >= rows);
  const cells = Array.from({ length: rows }, (_, i) => [i % across, Math.floor(i / across)]);
  return model.scoped(() => [
    model.upload([rows, side * side * 3], "float32", noise(rows * side * side * 3)),
    model.upload([rows, 2], "int32", cells.flat()),
  ]);
}

/** A sound of noise. */
function sound(model, seconds) {
  const count = Math.round(seconds * SAMPLE_RATE_HZ);
  const samples = noise(count).map((value) => (value - 0.5) / 2);
  return [model.scoped(() => model.upload([count], "float32", samples))];
}

/** One call of an embedding function: on the GPU alone, and as a client issues it. */
async function measure(model, name, inputs, operations, settings) {
  const embed = () => model.scoped(() => model.named(name)(...inputs, model.params));
  const values = await model.read(embed());
  const step = await replayed(model, embed, settings);
  const issuing = [];
  const driven = await repeated(settings.repeats, async () => {
    await model.gpu.sync();
    const start = performance.now();
    const result = embed();
    issuing.push(performance.now() - start);
    await model.gpu.sync();
    const ms = performance.now() - start;
    result.dispose();
    return ms;
  });
  const median = summary(step.samples).median;
  return {
    finite: values.every(Number.isFinite),
    deviation: rounded(Math.sqrt(values.reduce((sum, value) => sum + value * value, 0) / values.length)),
    repeats: settings.repeats,
    launches: step.launches,
    copies: step.copies,
    replayed_ms: summary(step.samples),
    driven_ms: summary(driven), // until the GPU is done
    issuing_ms: summary(issuing.slice(1)), // of which until the call returned
    operations,
    teraops: rounded(operations / median / 1e9),
    clocks_mhz: nvidiaSmi()?.clocksMhz ?? null,
    kernels: step.kernels,
  };
}

async function main() {
  if (!options.package) throw new Error("--package DIR is missing");
  const opened = await openDevice({
    skipValidation: options["skip-validation"],
    features: featuresOf(options.package),
  });
  const { device, description } = opened;
  say(`device: ${description.name}, driver ${description.driver}`);
  namePipelines();
  const common = commonFields(options, description);
  const model = await Model.load(options.package, opened, { weights: "synthetic", capacity: CAPACITY });
  await settle(opened);
  const heater = await Heater.make(device, description.onCpu ? 0 : HEATING_MS);
  const settings = { heater, repeats: Number(options.repeats), kernels: !options["no-kernels"] };
  const { image, audio } = model.metadata.media ?? {};
  const budgets = image ? numbers(options.rows).filter((rows) => rows <= image.max_budget) : [];
  const params = model.metadata.params;
  const jobs = [
    ...budgets.map((rows) => ({
      fields: { measure: "image", rows },
      name: "embed_image",
      make: () => picture(model, rows),
      operations: pictureOperations(params, rows),
    })),
    ...(audio ? numbers(options.seconds) : []).map((seconds) => ({
      fields: { measure: "audio", seconds },
      name: "embed_audio",
      make: () => sound(model, seconds),
      operations: soundOperations(params, seconds * SAMPLE_RATE_HZ),
    })),
  ];
  let finite = true;
  for (const { fields, name, make, operations } of jobs) {
    const inputs = make();
    const found = await measure(model, name, inputs, operations, settings);
    await settle(opened);
    for (const input of inputs) input.dispose();
    process.stdout.write(`${JSON.stringify({ ...common, ...fields, ...found })}\n`);
    say(
      `\n${name} ${JSON.stringify(fields)}: ${found.launches} launches, replayed ${found.replayed_ms.median} ms, ` +
        `driven ${found.driven_ms.median} ms, ${found.teraops} of 1e12 operations a second`,
    );
    say(kernelTable(found.kernels));
    finite &&= found.finite;
  }
  if (!finite) throw new Error("some rows are not finite");
}

await runScript(main);
