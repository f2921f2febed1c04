// Synthetic weights, made on the device: random values of a size that keeps activations near one.

const THREADS = 256;
const MAX_GROUPS = 4096;
const QUANTISED_4 = 0;
const QUANTISED_8 = 1;
const HALVES = 2;
const FLOATS = 3;
const BFLOATS = 4;
const WORD = 32; // bits
const BOUNDS = Float32Array.of(-4, 4, -16, 16); // of a tower's matmul: some values are beyond them
const QUANTISED = /^(.*)\.(q_weight|q_scale)(\.part\d+)?$/; // a large matrix is stored in parts

// All ones, which bytes never are, becomes the zero, 7 or 127, which keeps the mean at zero: a common
// part in all weights would grow from layer to layer.
const CODE = `
struct Job { count: u32, seed: u32, kind: u32, stride: u32, low: f32, high: f32 }
@group(0) @binding(0) var<storage, read_write> words: array<u32>;
@group(0) @binding(1) var<uniform> job: Job;

fn hash(value: u32) -> u32 {
  let state = value * 747796405u + 2891336453u;
  let word = ((state >> ((state >> 28u) + 4u)) ^ state) * 277803737u;
  return (word >> 22u) ^ word;
}

fn between(bits: u32) -> f32 {
  return mix(job.low, job.high, f32(bits >> 8u) * (1.0 / 16777216.0));
}

@compute @workgroup_size(${THREADS})
fn fill(@builtin(global_invocation_id) id: vec3<u32>) {
  for (var i = id.x; i < job.count; i += job.stride) {
    var word = hash(i ^ hash(job.seed));
    if (job.kind == ${QUANTISED_4}u) {
      let ones = word & (word >> 1u) & (word >> 2u) & (word >> 3u) & 0x11111111u;
      word ^= ones << 3u;
    } else if (job.kind == ${QUANTISED_8}u) {
      let pairs = word & (word >> 1u);
      let fours = pairs & (pairs >> 2u);
      word ^= (fours & (fours >> 4u) & 0x01010101u) << 7u;
    } else if (job.kind == ${HALVES}u) {
      word = pack2x16float(vec2<f32>(between(word), between(hash(word))));
    } else if (job.kind == ${BFLOATS}u) {
      word = (bitcast<u32>(between(word)) & 0xFFFF0000u) | (bitcast<u32>(between(hash(word))) >> 16u);
    } else {
      word = bitcast<u32>(between(word));
    }
    words[i] = word;
  }
}`;

/** Fills buffers on the device; each one gets values of its own. */
export class Filler {
  #device;
  #pipeline;
  #seed = 1;

  constructor(device) {
    this.#device = device;
    const module = device.createShaderModule({ code: CODE });
    this.#pipeline = device.createComputePipeline({
      layout: "auto",
      compute: { module, entryPoint: "fill" },
    });
  }

  /** Fills the state of a sequence with halves between -1 and 1 (tiny values, read as floats). */
  state(buffer) {
    this.#fill(buffer, HALVES, -1, 1);
  }

  /** Fills words of unsigned integers of 4 or 8 bits, without the largest one. */
  integers(buffer, bits) {
    this.#fill(buffer, bits === 4 ? QUANTISED_4 : QUANTISED_8, 0, 0);
  }

  /** Fills values between two bounds, as float16, float32 or, in words, bfloat16. */
  between(buffer, dtype, low, high) {
    this.#fill(buffer, { float16: HALVES, uint32: BFLOATS }[dtype] ?? FLOATS, low, high);
  }

  /** Fills one parameter; `shapes` maps every parameter's name to its shape. */
  parameter(buffer, { name, shape, dtype }, shapes) {
    const quantised = QUANTISED.exec(name);
    if (quantised) {
      const [, stem, kind, part = ""] = quantised;
      const words = shapes.get(`${stem}.q_weight${part}`).at(-1);
      const groups = shapes.get(`${stem}.q_scale${part}`).at(-1);
      // Otherwise a scale is a whole row's, or that of 256 channels: 4 bits stand for 2 and 8, too.
      const bits = words / groups === 8 ? 8 : 4;
      if (kind === "q_weight") {
        this.integers(buffer, bits);
      } else {
        const deviation = (2 ** bits - 2) / Math.sqrt(12); // of evenly spread quantised values
        const scale = 1 / (deviation * Math.sqrt((WORD * words) / bits));
        this.between(buffer, dtype, 0.8 * scale, 1.2 * scale);
      }
    } else if (name.endsWith(".bounds.weight")) {
      this.#device.queue.writeBuffer(buffer, 0, BOUNDS);
    } else if (name.endsWith(".token_ordering.weight")) {
      // The tokens of a drafter's clusters, which lie apart: an odd factor permutes a power of two.
      const tokens = Float32Array.from({ length: shape[0] }, (_, i) => (i * 40503) % shape[0]);
      this.#device.queue.writeBuffer(buffer, 0, tokens);
    } else if (shape.length === 1) {
      const middle = name.includes("layer_scalar") ? 0.5 : 1;
      this.between(buffer, dtype, 0.9 * middle, 1.1 * middle);
    } else {
      const bound = Math.sqrt(3 / (shape.at(-1) * (dtype === "uint32" ? 2 : 1)));
      this.between(buffer, dtype, -bound, bound);
    }
  }

  #fill(buffer, kind, low, high) {
    const device = this.#device;
    const count = buffer.size / 4;
    const groups = Math.min(MAX_GROUPS, Math.ceil(count / THREADS));
    const job = new ArrayBuffer(24);
    new Uint32Array(job).set([count, this.#seed++, kind, groups * THREADS]);
    new Float32Array(job).set([low, high], 4);
    const uniform = device.createBuffer({
      size: job.byteLength,
      usage: GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST,
    });
    device.queue.writeBuffer(uniform, 0, job);
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    pass.setPipeline(this.#pipeline);
    pass.setBindGroup(
      0,
      device.createBindGroup({
        layout: this.#pipeline.getBindGroupLayout(0),
        entries: [buffer, uniform].map((bound, binding) => ({ binding, resource: { buffer: bound } })),
      }),
    );
    pass.dispatchWorkgroups(groups);
    pass.end();
    device.queue.submit([encoder.finish()]);
    uniform.destroy();
  }
}
