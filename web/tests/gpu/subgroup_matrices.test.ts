import { expect, it } from "vitest";
import { withSubgroupMatrices } from "../../src/gpu/subgroup_matrices";

const FEATURE = "chromium-experimental-subgroup-matrix";

it("asks for matrices next to subgroups, where they are offered", () => {
  const offered = new Set(["subgroups", FEATURE]);
  expect(withSubgroupMatrices(["shader-f16", "subgroups"], offered)).toEqual(["shader-f16", "subgroups", FEATURE]);
  expect(withSubgroupMatrices(["subgroups"], new Set(["subgroups"]))).toEqual(["subgroups"]);
  expect(withSubgroupMatrices(["shader-f16"], offered)).toEqual(["shader-f16"]);
});
