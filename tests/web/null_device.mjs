// Checks WGSL on Dawn's null device, which has every feature and runs nothing.
// usage: node null_device.mjs: a trial's kernels, and one that is wrong; a line `found: ...` each with its errors.
import { dawn } from "../../benchmarks/webgpu/packages.mjs";
import { FEATURE, SHAPES, code } from "../../benchmarks/webgpu/subgroup_matrix_kernel.mjs";

Object.assign(globalThis, dawn.globals);
const gpu = dawn.create(["backend=null", "enable-dawn-features=allow_unsafe_apis"]);
const adapter = await gpu.requestAdapter();
const device = await adapter.requestDevice({ requiredFeatures: [FEATURE, "shader-f16"] });
device.addEventListener("uncapturederror", () => {}); // said below
const size = { cols: 5376, outputs: 18432 };
for (const text of [...SHAPES.map((shape) => code(shape, size)), "fn wrong() { return 1; }"]) {
  const { messages } = await device.createShaderModule({ code: text }).getCompilationInfo();
  process.stdout.write(`found: ${messages.map(({ type, message }) => `${type}: ${message}`).join("; ")}\n`);
}
process.exit(0);
