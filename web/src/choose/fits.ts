// Whether a library runs on a device as the stock client opens it, and which of several is expected to be the fastest.
import type { Needs, WebLibrary } from "./provenance";

/** What an adapter offers; plain data, so that tests can make it up. */
export interface Traits {
  features: ReadonlySet<string>;
  languageFeatures: ReadonlySet<string>;
  limits: Readonly<Record<LimitName, number>>;
  /** Threads of the smallest and the largest subgroup; 0: the browser does not report it. */
  subgroupMinSize: number;
  subgroupMaxSize: number;
  /** Of its subgroup matrices; none: the browser does not report them. */
  matrixConfigs: readonly MatrixConfig[];
  /** Whether gemma4-web is between the client and the device, and may ask for more features. */
  isDriven: boolean;
}

interface MatrixConfig {
  componentType: string;
  resultComponentType: string;
  M: number;
  N: number;
  K: number;
}

const MIB = 2 ** 20;

/** What the client asks of every device, at least. */
export const CLIENT_LIMITS = {
  maxBufferSize: 256 * MIB,
  maxStorageBufferBindingSize: 128 * MIB,
  maxComputeWorkgroupStorageSize: 32 << 10,
  maxStorageBuffersPerShaderStage: 10,
  maxComputeInvocationsPerWorkgroup: 256,
} as const;
export type LimitName = keyof typeof CLIENT_LIMITS;

/** Sizes of which the client asks for the largest that the adapter has. */
const STEPS: Partial<Record<LimitName, readonly number[]>> = {
  maxBufferSize: [1024 * MIB, 256 * MIB],
  maxStorageBufferBindingSize: [1024 * MIB, 128 * MIB],
  maxComputeInvocationsPerWorkgroup: [1024, 512, 256],
};
const BY_CLIENT = ["shader-f16", "subgroups"];
const SIZE_CONTROL = "subgroup-size-control";
export const SUBGROUP_MATRICES = "chromium-experimental-subgroup-matrix";
const BY_MODULE = [SIZE_CONTROL, SUBGROUP_MATRICES];
/** WebGPU has no smaller subgroups. */
const LEAST_SUBGROUP = 4;

export function traitsOf(
  adapter: Pick<GPUAdapter, "features" | "limits" | "info">,
  languageFeatures: Iterable<string> | undefined,
  isDriven: boolean,
): Traits {
  const limits = {} as Record<LimitName, number>;
  for (const name of Object.keys(CLIENT_LIMITS) as LimitName[]) limits[name] = Number(adapter.limits[name]) || 0;
  // Browsers have had `info` for less time than WebGPU.
  const { subgroupMinSize, subgroupMaxSize, subgroupMatrixConfigs } = (adapter.info ?? {}) as {
    subgroupMinSize?: number;
    subgroupMaxSize?: number;
    subgroupMatrixConfigs?: Iterable<MatrixConfig>;
  };
  return {
    features: new Set(adapter.features),
    languageFeatures: new Set(languageFeatures ?? []),
    limits,
    subgroupMinSize: subgroupMinSize ?? 0,
    subgroupMaxSize: subgroupMaxSize ?? 0,
    matrixConfigs: [...(subgroupMatrixConfigs ?? [])],
    isDriven,
  };
}

/** The limit that the client's device has; 0 where it cannot be opened. */
export function clientLimit(name: LimitName, offered: number): number {
  if (offered < CLIENT_LIMITS[name]) return 0;
  return STEPS[name]?.find((step) => step <= offered) ?? CLIENT_LIMITS[name];
}

/** The limits and features with which the client, and the module if it is there, open a device. */
export function deviceDescriptor({ features, limits, isDriven }: Traits): GPUDeviceDescriptor {
  const asked = BY_CLIENT.filter((name) => features.has(name));
  if (isDriven && features.has("subgroups")) asked.push(...BY_MODULE.filter((name) => features.has(name)));
  const requiredLimits: Record<string, number> = {};
  for (const [name, offered] of Object.entries(limits)) requiredLimits[name] = clientLimit(name as LimitName, offered);
  return { requiredFeatures: asked as GPUFeatureName[], requiredLimits };
}

/** What a library needs and the device lacks, in words; nothing where it runs. */
export function lacking(needs: Needs, traits: Traits): string[] {
  const missing: string[] = [];
  for (const [name, least] of Object.entries(CLIENT_LIMITS) as [LimitName, number][]) {
    if (traits.limits[name] < least) missing.push(`${name} of ${least} (here ${traits.limits[name]})`);
  }
  for (const feature of needs.features) {
    const isAsked = BY_CLIENT.includes(feature) || (traits.isDriven && BY_MODULE.includes(feature));
    if (!traits.features.has(feature)) missing.push(`the feature ${feature}`);
    else if (!isAsked) missing.push(`the feature ${feature}, which the client does not ask for`);
  }
  for (const feature of needs.languageFeatures) {
    if (!traits.languageFeatures.has(feature)) missing.push(`the WGSL language feature ${feature}`);
  }
  const atLeast = (name: LimitName, least: number) => {
    const here = clientLimit(name, traits.limits[name]);
    if (here && least > here) missing.push(`${name} of ${least} (the client gets ${here})`);
  };
  atLeast("maxStorageBufferBindingSize", needs.maxBindingBytes);
  atLeast("maxComputeInvocationsPerWorkgroup", needs.maxThreadsPerBlock);
  atLeast("maxComputeWorkgroupStorageSize", needs.maxSharedBytes);
  atLeast("maxStorageBuffersPerShaderStage", needs.maxStorageBuffers);
  missing.push(...lackingSubgroups(needs, traits));
  return missing;
}

/** Whether gemma4-web sets the subgroups of a kernel to this size. */
export function canSetSubgroups(
  size: number,
  { isDriven, features, subgroupMinSize, subgroupMaxSize }: Traits,
): boolean {
  return (
    isDriven && features.has(SIZE_CONTROL) && subgroupMinSize > 0 && subgroupMinSize <= size && size <= subgroupMaxSize
  );
}

function lackingSubgroups({ features, subgroupSize }: Needs, traits: Traits): string[] {
  const missing: string[] = [];
  // A size that nobody tells is the least that there may be: larger exchanges could be wrong.
  const least = traits.subgroupMinSize || LEAST_SUBGROUP;
  if (traits.features.has("subgroups") && subgroupSize > least && !canSetSubgroups(subgroupSize, traits)) {
    const here = traits.subgroupMinSize
      ? `here they may have ${least}`
      : "this browser does not say how many they have";
    missing.push(`subgroups of ${subgroupSize} threads or more (${here})`);
  }
  if (features.includes(SUBGROUP_MATRICES) && traits.features.has(SUBGROUP_MATRICES)) {
    if (!multiplies(traits)) missing.push("subgroup matrices of 16 x 16 16-bit floats");
    if (!missing.length && !isAlways(subgroupSize, traits))
      missing.push(`subgroups of exactly ${subgroupSize} threads (here they may have ${traits.subgroupMaxSize})`);
  }
  return missing;
}

/** Whether all subgroups of a kernel have this size: a matrix of a larger one is another kernel's. */
export function isAlways(size: number, traits: Traits): boolean {
  const { subgroupMinSize, subgroupMaxSize } = traits;
  return (subgroupMinSize === size && subgroupMaxSize === size) || canSetSubgroups(size, traits);
}

/** Whether the device may have the matrices that kernels use: 16 x 16 float16 operands, float32 sums. */
export function multiplies({ matrixConfigs }: Traits): boolean {
  const fitting = matrixConfigs.filter(
    ({ componentType, resultComponentType, M, N, K }) =>
      componentType === "f16" && resultComponentType === "f32" && [M, N, K].every((size) => size === 16),
  );
  return fitting.length > 0 || matrixConfigs.length === 0;
}

/** The libraries in the order in which they are expected to be fast, the fastest first. */
export function byExpectation(libraries: readonly WebLibrary[]): WebLibrary[] {
  const rank = ({ needs, activations, float16 }: WebLibrary) => [
    float16 === "words" ? 0 : 1,
    needs.features.includes(SUBGROUP_MATRICES) ? 1 : 0,
    needs.subgroupSize > 0 ? 1 : 0,
    activations === "int8" ? 1 : 0,
    needs.subgroupSize,
  ];
  return [...libraries].sort((a, b) => {
    const [of, and] = [rank(a), rank(b)];
    const first = of.findIndex((value, index) => value !== and[index]);
    return first < 0 ? 0 : and[first]! - of[first]!;
  });
}

/**
 * Whether `other` does all that `library` does with larger subgroups: that one is not worth a measurement, unless the
 * other turns out to be wrong.
 */
export function isSmallerThan(library: WebLibrary, other: WebLibrary): boolean {
  return (
    library.needs.subgroupSize > 0 &&
    library.needs.subgroupSize < other.needs.subgroupSize &&
    library.activations === other.activations &&
    library.float16 === other.float16
  );
}
