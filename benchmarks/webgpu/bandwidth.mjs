// How fast WGSL reads memory on this device: the bound of every decode step.
import { median, rounded } from "./statistics.mjs";

const THREADS = 256;
const GROUPS = 4096;
const MIB = 2 ** 20;
const SMALL = 16 * MIB;
const LARGE = 512 * MIB; // several times any cache
const SAMPLES = 5;

const CODE = `
@group(0) @binding(0) var<storage, read> data: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> sink: array<u32>;

@compute @workgroup_size(${THREADS})
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  var sum = vec4<u32>(0u);
  let count = arrayLength(&data);
  for (var i = id.x; i < count; i += ${THREADS * GROUPS}u) { sum += data[i]; }
  let total = sum.x + sum.y + sum.z + sum.w;
  if (total == 12345u) { sink[0] = total; } // keeps the reads
}`;

async function measure(device, pipeline, filler, bytes) {
  const data = device.createBuffer({ size: bytes, usage: GPUBufferUsage.STORAGE });
  const sink = device.createBuffer({ size: 16, usage: GPUBufferUsage.STORAGE });
  filler.state(data);
  const group = device.createBindGroup({
    layout: pipeline.getBindGroupLayout(0),
    entries: [data, sink].map((buffer, binding) => ({ binding, resource: { buffer } })),
  });
  const run = async (times) => {
    const start = performance.now();
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    pass.setPipeline(pipeline);
    pass.setBindGroup(0, group);
    for (let i = 0; i < times; i++) pass.dispatchWorkgroups(GROUPS);
    pass.end();
    device.queue.submit([encoder.finish()]);
    await device.queue.onSubmittedWorkDone();
    return (performance.now() - start) / times;
  };
  await run(1);
  const once = await run(1);
  const times = Math.max(1, Math.min(100, Math.round(20 / once)));
  const samples = [];
  for (let i = 0; i < SAMPLES; i++) samples.push(await run(times));
  data.destroy();
  sink.destroy();
  return { once, bytesPerSecond: rounded((bytes / median(samples)) * 1000), bytes };
}

/** Bytes per second that coalesced 16-byte loads reach, and the size of the buffer they read. */
export async function readBandwidth(device, filler) {
  const pipeline = device.createComputePipeline({
    layout: "auto",
    compute: { module: device.createShaderModule({ code: CODE }), entryPoint: "main" },
  });
  const small = await measure(device, pipeline, filler, SMALL);
  const { bytesPerSecond, bytes } = small.once > 3 ? small : await measure(device, pipeline, filler, LARGE);
  return { bytesPerSecond, bytes };
}
