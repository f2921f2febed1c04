// Keeps the GPU busy while the CPU encodes the next sample. A GPU that waits lowers its clock within
// milliseconds, and a sample after a pause would measure that instead of the kernels.
const THREADS = 256;
const GROUPS = 2048;
const ROUNDS = 4096; // of eight dependent multiply-adds per dispatch
const MAX_DISPATCHES = 20000;

const CODE = `
@group(0) @binding(0) var<storage, read_write> sink: array<f32>;

@compute @workgroup_size(${THREADS})
fn heat(@builtin(global_invocation_id) id: vec3<u32>) {
  var value = vec4<f32>(f32(id.x & 1023u)) * 1e-3;
  for (var i = 0u; i < ${ROUNDS}u; i++) {
    value = fma(value, vec4<f32>(0.999), vec4<f32>(1e-3));
    value = fma(value, vec4<f32>(1.001), vec4<f32>(-1e-3));
  }
  if (value.x + value.y + value.z + value.w == 12345.0) { sink[0] = value.x; } // keeps the work
}`;

export class Heater {
  #device;
  #pipeline;
  #group;
  #dispatches = 0;

  /** A heater of `milliseconds` per call; 0 for devices without a clock to raise. */
  static async make(device, milliseconds) {
    const heater = new Heater();
    if (milliseconds > 0) await heater.#calibrate(device, milliseconds);
    return heater;
  }

  /** Gives the GPU its work and returns at once. */
  start() {
    if (this.#dispatches) this.#submit(this.#dispatches);
  }

  async #calibrate(device, milliseconds) {
    this.#device = device;
    this.#pipeline = device.createComputePipeline({
      layout: "auto",
      compute: { module: device.createShaderModule({ code: CODE }), entryPoint: "heat" },
    });
    const buffer = device.createBuffer({ size: 16, usage: GPUBufferUsage.STORAGE });
    this.#group = device.createBindGroup({
      layout: this.#pipeline.getBindGroupLayout(0),
      entries: [{ binding: 0, resource: { buffer } }],
    });
    let last = 0;
    for (let dispatches = 1; last < milliseconds && dispatches <= MAX_DISPATCHES; dispatches *= 2) {
      const start = performance.now();
      this.#submit(dispatches);
      await device.queue.onSubmittedWorkDone();
      last = performance.now() - start;
      this.#dispatches = dispatches;
    }
  }

  #submit(dispatches) {
    const encoder = this.#device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    pass.setPipeline(this.#pipeline);
    pass.setBindGroup(0, this.#group);
    for (let i = 0; i < dispatches; i++) pass.dispatchWorkgroups(GROUPS);
    pass.end();
    this.#device.queue.submit([encoder.finish()]);
  }
}
