import { describe, expect, it } from "vitest";
import { pinSubgroupSize, withSubgroupSize } from "../../src/gpu/subgroup_size";

const DEVICE = { features: new Set(["subgroups", "subgroup-size-control"]) };
const ADAPTER = { subgroupMinSize: 8, subgroupMaxSize: 32 };

function kernel(threads = "256, 1, 1", features = "enable f16;\n\nenable subgroups;\n"): string {
  return `//---\n${features}\n@group(0) @binding(0) var<storage, read> x : array<f32>;\n@compute @workgroup_size(${threads})\nfn norm_kernel(\n) {}\n`;
}

describe("subgroup size", () => {
  it("is asked for next to subgroups, where it is offered", () => {
    expect(withSubgroupSize(["shader-f16", "subgroups"], DEVICE.features)).toEqual([
      "shader-f16",
      "subgroups",
      "subgroup-size-control",
    ]);
    expect(withSubgroupSize(["shader-f16"], DEVICE.features)).toEqual(["shader-f16"]);
    expect(withSubgroupSize(["subgroups"], new Set(["subgroups"]))).toEqual(["subgroups"]);
  });

  it("is pinned in the shader", () => {
    const code = pinSubgroupSize(kernel(), 32, DEVICE, ADAPTER);
    expect(code).toContain("enable subgroups;\nenable subgroup_size_control;");
    expect(code).toContain("@compute @subgroup_size(32) @workgroup_size(256, 1, 1)");
    expect(pinSubgroupSize(code, 32, DEVICE, ADAPTER)).toBe(code);
  });

  it.each([
    ["has no subgroups", kernel("256, 1, 1", ""), 32, DEVICE, ADAPTER],
    ["was compiled for any size", kernel(), 0, DEVICE, ADAPTER],
    ["runs where the size cannot be chosen", kernel(), 32, { features: new Set(["subgroups"]) }, ADAPTER],
    ["needs more than the device has", kernel(), 64, DEVICE, ADAPTER],
    ["needs fewer than the device has", kernel("16"), 4, DEVICE, ADAPTER],
    ["has rows of another length", kernel("48, 1, 1"), 32, DEVICE, ADAPTER],
    ["would have too many of them", kernel("512, 1, 1"), 8, DEVICE, ADAPTER],
    ["has too many rows", kernel("64, 4, 2"), 8, DEVICE, ADAPTER],
  ])("is left alone in a kernel that %s", (_, code, size, device, adapter) => {
    expect(pinSubgroupSize(code, size, device, adapter)).toBe(code);
  });
});
