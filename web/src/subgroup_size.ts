// Kernels that exchange values within N neighbouring threads are right where subgroups have N threads or more. With
// the feature `subgroup-size-control` a shader says how many it wants, instead of what the driver chooses.
const FEATURE = "subgroup-size-control";

/** The features to ask a device for: with subgroups their size, too, where the adapter lets a shader choose it. */
export function withSubgroupSize(asked: Iterable<GPUFeatureName>, offered: ReadonlySet<string>): GPUFeatureName[] {
  const features = new Set(asked);
  if (features.has("subgroups") && offered.has(FEATURE)) features.add(FEATURE as GPUFeatureName);
  return [...features];
}

/**
 * A kernel's WGSL with its subgroups' size pinned to `size`.
 *
 * Unchanged where it uses no subgroups, where the device has none of that size, and where rows of threads (the
 * workgroup's x) are no multiple of it, which the feature asks for.
 */
export function pinSubgroupSize(
  code: string,
  size: number,
  device: { readonly features: ReadonlySet<string> },
  adapter: { readonly subgroupMinSize?: number; readonly subgroupMaxSize?: number },
): string {
  const { subgroupMinSize = 0, subgroupMaxSize = 0 } = adapter;
  const offers = device.features.has(FEATURE) && size > 0 && subgroupMinSize <= size && size <= subgroupMaxSize;
  if (!offers || !/^\s*enable subgroups;/m.test(code) || code.includes("@subgroup_size")) return code;
  const threads = /@workgroup_size\(\s*(\d+)/.exec(code)?.[1];
  if (threads === undefined || Number(threads) % size) return code;
  return code
    .replace(/^\s*enable subgroups;/m, (line) => `${line}\nenable subgroup_size_control;`)
    .replace("@compute", `@compute @subgroup_size(${size})`);
}
