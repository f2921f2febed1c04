// What Dawn's experimental subgroup matrices would give a chunk's matmuls: a kernel written by hand next to
// the package's own, on the same packed rows and 4-bit weights. One JSON line a kernel to stdout.
// usage: node subgroup_matrix.mjs CASES.jsonl [--repeats N] [--commit HASH] [--skip-validation]
//
// CASES.jsonl is what `tune.py prepare --family int8_gemm` writes; of its kernels those are taken that have 4-bit
// weights and no tail. The kernel by hand (subgroup_matrix_kernel.mjs) exists here only: see docs/reports/performance.md.
import { parseArgs } from "node:util";
import { settle } from "../../gemma4_compile/verification/webgpu_device.mjs";
import { compile, readCases, uniformContent } from "./cases.mjs";
import { openDevice, runScript } from "./device.mjs";
import { Heater } from "./heater.mjs";
import { Replay } from "./replay.mjs";
import { rounded, summary } from "./statistics.mjs";
import { FEATURE, SHAPES, code } from "./subgroup_matrix_kernel.mjs";
import { Filler } from "./weights.mjs";

const HEATING_MS = 10;
const ORDER = ["q_scale0", "q_weight0", "scales", "words", "y"]; // of the bindings, in both kernels

function clear(device, buffer) {
  const encoder = device.createCommandEncoder();
  encoder.clearBuffer(buffer);
  device.queue.submit([encoder.finish()]);
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
  const filler = new Filler(device);
  for (const item of readCases(positionals[0])) {
    const cols = Number(/cols=(\d+)/.exec(item.operator)[1]);
    const outputs = Number(/(?:part|split)_rows=\((\d+),\)/.exec(item.operator)[1]);
    if (!/bits=4/.test(item.operator) || !/tail='none'/.test(item.operator)) continue;
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
    const buffers = item.bindings.map(([size]) => device.createBuffer({ size, usage }));
    const [weightScales, weights, scales, words, y] = buffers;
    if (item.bindings.some(([, , name], i) => name !== ORDER[i])) throw new Error(`unknown bindings: ${item.bindings}`);
    filler.integers(weights, 4);
    filler.integers(words, 8);
    filler.between(weightScales, "float16", 0.0005, 0.001);
    filler.between(scales, "float32", 0.005, 0.015);
    const operations = 2 * item.rows * outputs * cols;
    const run = async (wgsl, groups) => {
      const made = await compile(device, { ...item, wgsl });
      clear(device, y); // or a kernel that writes nothing would equal the one before
      const last = buffers.length;
      const entries = [...buffers, null].map((buffer, binding) => ({ binding, resource: { buffer } }));
      const uniforms = new Map([[last, uniformContent(item)]]); // the kernel by hand leaves it unread
      const replay = new Replay(device, [{ kernel: "matmul", ...made, groups, uniforms, entries }], heater);
      const { median, spread } = summary((await replay.time(Number(options.repeats))).map((ms) => ms * 1000));
      await settle(opened);
      const result = await read(device, y);
      replay.dispose();
      return { microseconds: median, spread, result };
    };
    const own = await run(item.wgsl, item.groups);
    const line = (variant, { microseconds, spread }, more) =>
      process.stdout.write(
        `${JSON.stringify({
          benchmark: "subgroup_matrix",
          date: new Date().toISOString().slice(0, 10),
          commit: options.commit,
          device: description.name,
          driver: description.driver,
          preset: item.preset,
          rows: item.rows,
          cols,
          outputs,
          variant,
          microseconds,
          spread,
          teraops: rounded(operations / microseconds / 1e6),
          ...more,
        })}\n`,
      );
    line("own kernel", own, {});
    for (const shape of SHAPES) {
      if (item.rows % shape.m || outputs % shape.n || cols % shape.depth) continue;
      const groups = [outputs / shape.n, item.rows / shape.m];
      try {
        const other = await run(code(shape, { cols, outputs }), groups);
        line("subgroup matrices", other, { shape, difference: difference(other.result, own.result) });
      } catch (error) {
        process.stderr.write(`${JSON.stringify(shape)}: ${error.message}\n`);
        opened.errors.length = 0;
      }
    }
    for (const buffer of buffers) buffer.destroy();
  }
}

await runScript(main);
