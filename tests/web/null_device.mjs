// Checks WGSL on Dawn's null device, which has every feature and runs nothing.
// usage: node null_device.mjs [FILE...]: the texts of the files, or a trial's kernels and one that is wrong; a line
// `found: ...` each with its errors.
import fs from "node:fs";
import { fileURLToPath } from "node:url";
import { FEATURE, SHAPES, code } from "../../benchmarks/webgpu/subgroup_matrix_kernel.mjs";
import { loadDawn, startDawn } from "../../gemma4_compile/verification/webgpu_device.mjs";

const NODE_MODULES = fileURLToPath(new URL("node_modules", import.meta.url));

startDawn(await loadDawn(NODE_MODULES), { backend: "null", enable: ["allow_unsafe_apis"] });
const adapter = await navigator.gpu.requestAdapter();
const device = await adapter.requestDevice({ requiredFeatures: [FEATURE, "shader-f16", "subgroups"] });
device.addEventListener("uncapturederror", () => {}); // reported below
const size = { cols: 5376, outputs: 18432 };
const files = process.argv.slice(2);
const trial = [...SHAPES.map((shape) => code(shape, size)), "fn wrong() { return 1; }"];
for (const text of files.length ? files.map((file) => fs.readFileSync(file, "utf8")) : trial) {
  const { messages } = await device.createShaderModule({ code: text }).getCompilationInfo();
  process.stdout.write(
    `found: ${messages
      .map(({ type, message }) => `${type}: ${message}`)
      .join("; ")
      .split("\n")
      .join(" ")}\n`,
  );
}
process.exit(0);
