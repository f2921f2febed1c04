// What Dawn's experimental subgroup matrices would give a chunk's matmuls: a kernel written by hand beside
// the package's own, on the same packed rows and 4-bit weights. One JSON line a kernel to stdout.
// usage: node subgroup_matrix.mjs CASES.jsonl [--repeats N] [--commit HASH] [--skip-validation]
//
// CASES.jsonl is what `tune.py prepare --family int8_gemm` writes; of its kernels those are taken that have 4-bit
// weights and no tail. The kernel by hand (subgroup_matrix_kernel.mjs) exists here only: see docs/performance.md.
import fs from "node:fs";
import { parseArgs } from "node:util";
import { openDevice, release, settle } from "./device.mjs";
import { Heater } from "./heater.mjs";
import { Replay } from "./replay.mjs";
import { rounded, summary } from "./statistics.mjs";
import { FEATURE, SHAPES, code } from "./subgroup_matrix_kernel.mjs";

const HEATING_MS = 10;
const ORDER = ["q_scale0", "q_weight0", "scales", "words", "y"];

/** A repeatable stream of 32-bit values. */
function* stream(seed) {
  for (let state = seed; ; ) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    yield state ^ (state >>> 15);
  }
}

/** `word` with its fields changed that have the one value which no rounding makes. */
function allowed(word, width, value) {
  const mask = 2 ** width - 1;
  for (let shift = 0; shift < 32; shift += width) {
    if (((word >>> shift) & mask) === value) word ^= 1 << shift;
  }
  return word;
}

/** Operands with values as a model has them: nibbles of 0 to 14, bytes within 127, scales about 0.001 and 0.01. */
function content(name, bytes) {
  const bits = stream(bytes);
  const next = () => bits.next().value >>> 0;
  if (name === "scales") return new Float32Array(bytes / 4).map(() => 0.005 + next() * 2 ** -32 / 100);
  if (name === "q_scale0") return new Uint16Array(bytes / 2).map(() => 0x1000 + (next() % 0x800));
  const isWeight = name === "q_weight0";
  return new Uint32Array(bytes / 4).map(() => (isWeight ? allowed(next(), 4, 0xf) : allowed(next(), 8, 0x80)));
}

function uniformOf({ uniforms }) {
  const view = new DataView(new ArrayBuffer(Math.ceil(uniforms.length / 4) * 16));
  uniforms.forEach(([kind, value], i) =>
    kind === "f32" ? view.setFloat32(4 * i, value, true) : view.setInt32(4 * i, value, true));
  return new Uint8Array(view.buffer);
}

async function pipelineOf(device, wgsl, withUniform) {
  const visibility = GPUShaderStage.COMPUTE;
  const entries = ORDER.map((name, binding) => (
    { binding, visibility, buffer: { type: name === "y" ? "storage" : "read-only-storage" } }));
  if (withUniform) entries.push({ binding: ORDER.length, visibility, buffer: { type: "uniform" } });
  const layout = device.createBindGroupLayout({ entries });
  const pipeline = await device.createComputePipelineAsync({
    layout: device.createPipelineLayout({ bindGroupLayouts: [layout] }),
    compute: { module: device.createShaderModule({ code: wgsl }), entryPoint: /fn (\w+)\(/.exec(wgsl)[1] },
  });
  return { pipeline, layout };
}

async function read(device, buffer) {
  const { size } = buffer;
  const staging = device.createBuffer({ size, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
  const encoder = device.createCommandEncoder();
  encoder.copyBufferToBuffer(buffer, 0, staging, 0, size);
  device.queue.submit([encoder.finish()]);
  await staging.mapAsync(GPUMapMode.READ);
  const values = new Float32Array(staging.getMappedRange().slice(0));
  staging.destroy();
  return values;
}

/** The largest difference as a share of the largest expected value. */
function difference(found, expected) {
  let worst = 0;
  let largest = 0;
  expected.forEach((value, i) => {
    worst = Math.max(worst, Math.abs(found[i] - value));
    largest = Math.max(largest, Math.abs(value));
  });
  return rounded(worst / largest);
}

async function main() {
  const { values: options, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      repeats: { type: "string", default: "3" },
      commit: { type: "string", default: "unknown" },
      "skip-validation": { type: "boolean", default: false },
    },
  });
  const opened = await openDevice({ skipValidation: options["skip-validation"], features: [FEATURE] });
  const { device, description } = opened;
  if (!device.features.has(FEATURE)) {
    throw new Error(`${description.name} offers no ${FEATURE}; take another device`);
  }
  for (const { componentType, resultComponentType, M, N, K } of device.adapterInfo?.subgroupMatrixConfigs ?? []) {
    process.stderr.write(`offered: ${componentType} to ${resultComponentType}, ${M} x ${N} x ${K}\n`);
  }
  const heater = await Heater.make(device, description.onCpu ? 0 : HEATING_MS);
  const cases = fs.readFileSync(positionals[0], "utf8").split("\n").filter(Boolean).map((line) => JSON.parse(line));
  for (const item of cases) {
    const cols = Number(/cols=(\d+)/.exec(item.operator)[1]);
    const outputs = Number(/part_rows=\((\d+),\)/.exec(item.operator)[1]);
    if (!/bits=4/.test(item.operator) || !/tail='none'/.test(item.operator)) continue;
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
    const buffers = new Map(item.bindings.map(([size, , name]) => [name, device.createBuffer({ size, usage })]));
    for (const [name, buffer] of buffers) {
      if (name !== "y") device.queue.writeBuffer(buffer, 0, content(name, buffer.size));
    }
    const operations = 2 * item.rows * outputs * cols;
    const run = async (kernel, wgsl, groups, uniform) => {
      const made = await pipelineOf(device, wgsl, Boolean(uniform));
      const entries = ORDER.map((name, binding) => ({ binding, resource: { buffer: buffers.get(name) } }));
      if (uniform) entries.push({ binding: ORDER.length, resource: { buffer: null } });
      const uniforms = new Map(uniform ? [[ORDER.length, uniform]] : []);
      const replay = new Replay(device, [{ kernel, ...made, groups, uniforms, entries }], heater);
      const { median, spread } = summary((await replay.time(Number(options.repeats))).map((ms) => ms * 1000));
      await settle(opened);
      const result = await read(device, buffers.get("y"));
      replay.dispose();
      return { microseconds: median, spread, result };
    };
    const own = await run("own", item.wgsl, item.groups, uniformOf(item));
    const line = (variant, { microseconds, spread }, more) => process.stdout.write(`${JSON.stringify({
      benchmark: "subgroup_matrix", date: new Date().toISOString().slice(0, 10), commit: options.commit,
      device: description.name, driver: description.driver, preset: item.preset, rows: item.rows, cols, outputs,
      variant, microseconds, spread, teraops: rounded(operations / microseconds / 1e6), ...more,
    })}\n`);
    line("own kernel", own, {});
    for (const shape of SHAPES) {
      if (item.rows % shape.m || outputs % shape.n || cols % shape.depth) continue;
      const groups = [outputs / shape.n, item.rows / shape.m];
      try {
        const other = await run("subgroup_matrix", code(shape, { cols, outputs }), groups, null);
        line("subgroup matrices", other, { shape, difference: difference(other.result, own.result) });
      } catch (error) {
        process.stderr.write(`${JSON.stringify(shape)}: ${error.message}\n`);
        opened.errors.length = 0;
      }
    }
    for (const buffer of buffers.values()) buffer.destroy();
  }
}

let status = 0;
try {
  await main();
} catch (error) {
  process.stderr.write(`error: ${error.stack ?? error}\n`);
  status = 1;
}
release();
process.exitCode = status;
process.stdout.write("", () => process.exit(status));
