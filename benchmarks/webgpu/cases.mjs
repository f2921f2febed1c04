// Kernels that `tune.py prepare` wrote: each with its WGSL, its bindings and the values of its uniform.
import fs from "node:fs";

/** The cases of a file, one JSON object a line. */
export const readCases = (file) =>
  fs
    .readFileSync(file, "utf8")
    .split("\n")
    .filter(Boolean)
    .map((line) => JSON.parse(line));

/** A kernel's pipeline, compiled in the background, and the layout of its arguments. */
export function compile(device, item) {
  const types = { read: "read-only-storage", read_write: "storage" };
  const visibility = GPUShaderStage.COMPUTE;
  const last = item.bindings.length;
  const layout = device.createBindGroupLayout({
    entries: [
      ...item.bindings.map(([, access], binding) => ({ binding, visibility, buffer: { type: types[access] } })),
      { binding: last, visibility, buffer: { type: "uniform" } },
    ],
  });
  const pipeline = device.createComputePipelineAsync({
    layout: device.createPipelineLayout({ bindGroupLayouts: [layout] }),
    compute: {
      module: device.createShaderModule({ code: item.wgsl }),
      entryPoint: item.wgsl.match(/fn (\w+)\(/)[1],
    },
  });
  return pipeline.then((made) => ({ pipeline: made, layout }));
}

/** Bytes of the uniform, the binding after all others. */
export function uniformContent({ uniforms }) {
  const content = new DataView(new ArrayBuffer(Math.ceil(uniforms.length / 4) * 16));
  for (const [i, [kind, value]] of uniforms.entries()) {
    if (kind === "f32") content.setFloat32(4 * i, value, true);
    else content.setInt32(4 * i, value, true);
  }
  return new Uint8Array(content.buffer);
}
