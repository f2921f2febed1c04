// Packages of --limits h200-matrices multiply matrices of whole subgroups. Chromium has that as an experiment, which the
// client does not ask for: an adapter offers it where the browser was started with --enable-unsafe-webgpu.
const FEATURE = "chromium-experimental-subgroup-matrix";

/** The features to ask a device for: next to subgroups their matrices, where the adapter offers them. */
export function withSubgroupMatrices(asked: Iterable<GPUFeatureName>, offered: ReadonlySet<string>): GPUFeatureName[] {
  const features = new Set(asked);
  if (features.has("subgroups") && offered.has(FEATURE)) features.add(FEATURE as GPUFeatureName);
  return [...features];
}
