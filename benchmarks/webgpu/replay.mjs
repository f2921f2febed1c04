// Runs recorded launches again, all in one compute pass with bind groups made before: the GPU's own
// speed, without what the runtime does on the CPU for each launch. Timestamps at both ends of the pass
// measure it; without them it is the time from submission to completion, which includes work of Dawn's.
import { median, repeated, rounded } from "./statistics.mjs";

const ALIGNMENT = 256; // of a uniform's offset, in every WebGPU device
const SAMPLE_MS = 20;
const MAX_STEPS = 200; // in one submission
const KERNEL_SAMPLES = 3;
const PASSES_PER_QUERY_SET = 2048; // two queries each, and WebGPU's limit is 4096

export class Replay {
  #device;
  #heater;
  #stamps;
  #uniforms;
  #launches;

  constructor(device, launches, heater) {
    this.#device = device;
    this.#heater = heater;
    this.#stamps = device.features.has("timestamp-query");
    let size = 0;
    for (const { uniforms } of launches) size += uniforms.size * ALIGNMENT;
    this.#uniforms = device.createBuffer({
      size: Math.max(size, ALIGNMENT),
      usage: GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST,
    });
    let offset = 0;
    this.#launches = launches.map(({ kernel, pipeline, layout, entries, uniforms, groups }) => {
      const bound = entries.map(({ binding, resource }) => {
        const content = uniforms.get(binding);
        if (!content) return { binding, resource };
        device.queue.writeBuffer(this.#uniforms, offset, content);
        const own = { buffer: this.#uniforms, offset, size: content.byteLength };
        offset += ALIGNMENT;
        return { binding, resource: own };
      });
      return { kernel, pipeline, groups, bindGroup: device.createBindGroup({ layout, entries: bound }) };
    });
  }

  dispose() {
    this.#uniforms.destroy();
  }

  /** Milliseconds of one step, `repeats` times; each sample is many steps in one submission. */
  async time(repeats) {
    return this.#time(this.#launches, repeats);
  }

  /**
   * Milliseconds of the whole step and, by kernel, microseconds of all its launches: what is gone when
   * they are left out, and what timestamps around each one in a pass of its own add up to (or null).
   */
  async timeKernels() {
    const kernels = [...new Set(this.#launches.map(({ kernel }) => kernel))];
    const whole = median(await this.#time(this.#launches, KERNEL_SAMPLES));
    const stamps = this.#stamps ? await this.#launchTimes() : null;
    const result = new Map();
    for (const kernel of kernels) {
      const others = this.#launches.filter((launch) => launch.kernel !== kernel);
      const rest = others.length ? median(await this.#time(others, KERNEL_SAMPLES)) : 0;
      const alone =
        stamps && rounded(stamps.reduce((sum, us, i) => sum + (this.#launches[i].kernel === kernel ? us : 0), 0));
      result.set(kernel, { microseconds: rounded((whole - rest) * 1000), timestamp_us: alone });
    }
    return { whole, kernels: result };
  }

  async #time(launches, repeats) {
    const once = await this.#run(launches, 1);
    const steps = Math.max(1, Math.min(MAX_STEPS, Math.ceil(SAMPLE_MS / once)));
    return repeated(repeats, () => this.#run(launches, steps));
  }

  async #run(launches, steps) {
    this.#heater.start();
    const encode = (pass) => {
      for (let step = 0; step < steps; step++) this.#encode(pass, launches);
    };
    if (this.#stamps) return (await this.#stamped([encode]))[0] / 1000 / steps;
    const encoder = this.#device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    encode(pass);
    pass.end();
    const commands = encoder.finish();
    await this.#device.queue.onSubmittedWorkDone();
    const start = performance.now();
    this.#device.queue.submit([commands]);
    await this.#device.queue.onSubmittedWorkDone();
    return (performance.now() - start) / steps;
  }

  #encode(pass, launches) {
    let current = null;
    for (const { pipeline, bindGroup, groups } of launches) {
      if (pipeline !== current) pass.setPipeline(pipeline);
      current = pipeline;
      pass.setBindGroup(0, bindGroup);
      pass.dispatchWorkgroups(...groups);
    }
  }

  /** Microseconds of each launch in a pass of its own, the middle of several runs. */
  async #launchTimes() {
    const encodes = this.#launches.map((launch) => (pass) => this.#encode(pass, [launch]));
    const runs = [];
    for (let run = 0; run <= KERNEL_SAMPLES; run++) {
      const times = [];
      for (let first = 0; first < encodes.length; first += PASSES_PER_QUERY_SET) {
        this.#heater.start();
        times.push(...(await this.#stamped(encodes.slice(first, first + PASSES_PER_QUERY_SET))));
      }
      if (run > 0) runs.push(times); // the first one warms up
    }
    return this.#launches.map((_, i) => median(runs.map((times) => times[i])));
  }

  /** Runs each function on a pass of its own, in one submission; microseconds of each pass. */
  async #stamped(encodes) {
    const device = this.#device;
    const count = 2 * encodes.length;
    const querySet = device.createQuerySet({ type: "timestamp", count });
    const make = (usage) => device.createBuffer({ size: 8 * count, usage });
    const resolved = make(GPUBufferUsage.QUERY_RESOLVE | GPUBufferUsage.COPY_SRC);
    const read = make(GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST);
    const encoder = device.createCommandEncoder();
    encodes.forEach((encode, i) => {
      const beginningOfPassWriteIndex = 2 * i;
      const endOfPassWriteIndex = beginningOfPassWriteIndex + 1;
      const pass = encoder.beginComputePass({
        timestampWrites: { querySet, beginningOfPassWriteIndex, endOfPassWriteIndex },
      });
      encode(pass);
      pass.end();
    });
    encoder.resolveQuerySet(querySet, 0, count, resolved, 0);
    encoder.copyBufferToBuffer(resolved, 0, read, 0, 8 * count);
    device.queue.submit([encoder.finish()]);
    await read.mapAsync(GPUMapMode.READ);
    const stamps = new BigUint64Array(read.getMappedRange().slice(0));
    read.unmap();
    querySet.destroy();
    resolved.destroy();
    read.destroy();
    return encodes.map((_, i) => Number(stamps[2 * i + 1] - stamps[2 * i]) / 1000);
  }
}

/** Launches, workgroups and bytes by kernel. */
export function kernelFacts(launches, weightBuffers) {
  const facts = new Map();
  for (const { kernel, entries, uniforms, groups } of launches) {
    const fact = facts.get(kernel) ?? { kernel, launches: 0, workgroups: 0, bound_bytes: 0, weight_bytes: 0 };
    fact.launches += 1;
    fact.workgroups += groups.reduce((product, size) => product * size, 1);
    for (const { binding, resource } of entries) {
      if (uniforms.has(binding)) continue;
      const bytes = resource.size ?? resource.buffer.size;
      fact.bound_bytes += bytes;
      if (weightBuffers.has(resource.buffer)) fact.weight_bytes += bytes;
    }
    facts.set(kernel, fact);
  }
  return facts;
}
