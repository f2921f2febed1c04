// Kernels that exchange values within N neighbouring threads are right where subgroups have N threads or more. With
// the feature `subgroup-size-control` a shader sets how many it wants, instead of what the driver chooses.
const FEATURE = "subgroup-size-control";
// Drivers limit the subgroups of a workgroup once their size is chosen, and JavaScript cannot ask how; all allow this.
const MAX_SUBGROUPS = 32;

/** The features to ask a device for: with subgroups their size, too, where the adapter lets a shader choose it. */
export function withSubgroupSize(asked: Iterable<GPUFeatureName>, offered: ReadonlySet<string>): GPUFeatureName[] {
  const features = new Set(asked);
  if (features.has("subgroups") && offered.has(FEATURE)) features.add(FEATURE as GPUFeatureName);
  return [...features];
}

/**
 * A kernel's WGSL with its subgroups' size pinned to `size`.
 *
 * Unchanged where it uses no subgroups, where the device has none of that size, where rows of threads (the workgroup's
 * x) are no multiple of it, which the feature asks for, and where they were too many.
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
  const [, x = 0, y = 1, z = 1] = (
    /@workgroup_size\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?(?:,\s*(\d+)\s*)?,?\s*\)/.exec(code) ?? []
  )
    .map(Number)
    .map((n) => n || undefined);
  if (!x || x % size || (x * y * z) / size > MAX_SUBGROUPS) return code;
  return code
    .replace(/^\s*enable subgroups;/m, (line) => `${line}\nenable subgroup_size_control;`)
    .replace("@compute", `@compute @subgroup_size(${size})`);
}
