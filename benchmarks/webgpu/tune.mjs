// Times the kernels that `tune.py prepare` wrote; prints one JSON line a kernel to stdout.
// usage: node tune.mjs CASES.jsonl... [--repeats N] [--copy-mib N] [--commit HASH] [--skip-validation]
//
// Weights of several copies are read in turn, so that a cache does not hold them from launch to launch.
import { parseArgs } from "node:util";
import { settle } from "../../gemma4_compile/verification/webgpu_device.mjs";
import { compile, readCases, uniformContent } from "./cases.mjs";
import { openDevice, runScript } from "./device.mjs";
import { Heater } from "./heater.mjs";
import { Replay } from "./replay.mjs";
import { rounded, summary } from "./statistics.mjs";
import { Filler } from "./weights.mjs";

const MIB = 2 ** 20;
const HEATING_MS = 10; // longer than encoding a sample takes
const MAX_COPIES = 16;

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    repeats: { type: "string", default: "3" },
    "copy-mib": { type: "string", default: "128" }, // bytes that all copies together should have
    commit: { type: "string", default: "unknown" },
    "skip-validation": { type: "boolean", default: false },
  },
});

/** Buffers by size and use, made once: a kernel's time does not depend on what it computes. */
class Pool {
  #device;
  #filler;
  #buffers = new Map();

  constructor(device) {
    this.#device = device;
    this.#filler = new Filler(device);
  }

  get(bytes, copy, use) {
    const size = Math.max(16, Math.ceil(bytes / 16) * 16);
    const key = `${size} ${copy} ${use}`;
    if (!this.#buffers.has(key)) {
      const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_DST;
      const buffer = this.#device.createBuffer({ size, usage });
      if (use.endsWith("0")) this.#filler.state(buffer);
      this.#buffers.set(key, buffer);
    }
    return this.#buffers.get(key);
  }

  clear() {
    for (const buffer of this.#buffers.values()) buffer.destroy();
    this.#buffers.clear();
  }
}

function makeLaunches(pool, positions, item, { pipeline, layout }) {
  const last = item.bindings.length;
  const uniforms = new Map([[last, uniformContent(item)]]);
  const weights = item.bindings.filter(([, , name]) => /weight|scale/.test(name));
  const bytes = weights.reduce((sum, [size]) => sum + size, 0);
  const wanted = bytes ? Math.ceil((Number(options["copy-mib"]) * MIB) / bytes) : 1;
  const copies = Math.min(wanted, MAX_COPIES);
  return Array.from({ length: copies }, (_, copy) => ({
    kernel: "candidate",
    pipeline,
    layout,
    groups: item.groups,
    uniforms,
    entries: [
      ...item.bindings.map(([size, , name], binding) => ({
        binding,
        resource: {
          buffer:
            name === "positions" && size === 16 // of a decoder's step; of a picture's blocks all are 0
              ? positions(item)
              : pool.get(size, /weight|scale/.test(name) ? copy : 0, `argument ${binding}`),
        },
      })),
      { binding: last, resource: { buffer: null } },
    ],
  }));
}

async function main() {
  const opened = await openDevice({
    skipValidation: options["skip-validation"],
    features: ["chromium-experimental-subgroup-matrix"],
  });
  const { device, description } = opened;
  process.stderr.write(`device: ${description.name}\n`);
  const heater = await Heater.make(device, description.onCpu ? 0 : HEATING_MS);
  const pool = new Pool(device);
  const positions = ({ context, rows }) => {
    const buffer = device.createBuffer({ size: 16, usage: GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_DST });
    device.queue.writeBuffer(buffer, 0, new Int32Array([context, rows, context + rows, 0]));
    return buffer;
  };
  const items = positionals.flatMap(readCases);
  const compiled = new Map();
  for (const item of items) {
    if (!compiled.has(item.wgsl)) compiled.set(item.wgsl, compile(device, item));
  }
  await Promise.all(compiled.values());
  process.stderr.write(`${compiled.size} kernels compiled\n`);
  const known = new Map(); // candidates often share kernels
  for (const item of items) {
    const key = `${item.context} ${item.groups} ${item.wgsl}`;
    if (!known.has(key)) {
      const launches = makeLaunches(pool, positions, item, await compiled.get(item.wgsl));
      const replay = new Replay(device, launches, heater);
      const times = await replay.time(Number(options.repeats));
      await settle(opened);
      replay.dispose();
      known.set(
        key,
        times.map((ms) => (ms * 1000) / launches.length),
      );
    }
    const { median, spread } = summary(known.get(key));
    const { wgsl, bindings, uniforms, ...facts } = item;
    const bytes = bindings.reduce((sum, [size, , name]) => sum + (/weight|scale/.test(name) ? size : 0), 0);
    process.stdout.write(
      `${JSON.stringify({
        benchmark: "tune",
        date: new Date().toISOString().slice(0, 10),
        commit: options.commit,
        device: description.name,
        driver: description.driver,
        ...facts,
        weight_bytes: bytes,
        microseconds: median,
        spread,
        gigabytes_per_second: rounded(bytes / median / 1000),
      })}\n`,
    );
  }
  pool.clear();
}

await runScript(main);
