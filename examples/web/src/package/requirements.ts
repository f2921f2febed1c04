// Whether this browser can run a package: asked before the download, the client asks after it.
import type { Package } from "./package";
import { formatBytes, formatCount, MIB } from "./units";

/** What the page found out about the device; plain data, so that tests can make it up. */
export interface Device {
  name: string;
  features: ReadonlySet<string>;
  /** It has no graphics processor: the processor computes what one would. */
  isSoftware: boolean;
  /** Threads of the smallest subgroup; 0: the browser does not report it. */
  subgroupSize: number;
  /** Of its subgroup matrices; none: the browser does not report them. */
  matrixConfigs: readonly MatrixConfig[];
  limits: Readonly<Record<LimitName, number>>;
  /** The machine's memory as the browser reports it, rounded and capped; 0: it reports none. */
  memoryBytes: number;
  /** What this site may still store; undefined: the browser reports nothing. */
  freeStorageBytes: number | undefined;
}

/** Sizes and types that a device's subgroup matrices may have. */
export interface MatrixConfig {
  componentType: string;
  resultComponentType: string;
  M: number;
  N: number;
  K: number;
}

export interface Finding {
  /** fits: fine. risk: may go wrong, and the person may try. blocks: cannot work. */
  kind: "fits" | "risk" | "blocks";
  text: string;
  /** What to do about it. */
  hint?: string;
}

export type LimitName = keyof typeof CLIENT_LIMITS;

// What the client requests of every device, whatever the model.
export const CLIENT_LIMITS = {
  maxBufferSize: 256 * MIB,
  maxStorageBufferBindingSize: 128 * MIB,
  maxComputeWorkgroupStorageSize: 32 << 10,
  maxStorageBuffersPerShaderStage: 10,
  maxComputeInvocationsPerWorkgroup: 256,
} as const;

// The client creates its device with one of these two sizes of a binding.
const CLIENT_BINDINGS = [1024 * MIB, 128 * MIB];
const F16 = "shader-f16";
/** Behind a flag; `gemma4-web/fast` asks for it, the client alone does not. */
export const SUBGROUP_MATRICES = "chromium-experimental-subgroup-matrix";
// Profiles of --limits that use subgroups, by the threads that the smallest one must have.
const SUBGROUP_LIMITS = [
  [32, "subgroups"],
  [16, "subgroups-16"],
  [8, "subgroups-8"],
  [4, "subgroups-4"],
] as const;
// Below this nobody has to think about memory.
const SMALL_BYTES = 256 * MIB;
const LEAST_CONTEXT = 256;

/** GPU memory in bytes at a context length of N tokens. */
export function neededMemory(pack: Pick<Package, "requirements" | "contextLength">, context: number): number {
  const { weightsBytes, kvSlidingBytes, kvFullBytes, activationBytes } = pack.requirements;
  return weightsBytes + kvSlidingBytes + activationBytes + (kvFullBytes * context) / pack.contextLength;
}

/** Context lengths that a person can choose: the package's own, and halves of it. */
export function contextLengths(pack: Pick<Package, "contextLength">): number[] {
  const lengths = [];
  for (let length = pack.contextLength; length >= LEAST_CONTEXT; length = Math.floor(length / 2)) lengths.push(length);
  return lengths.length ? lengths : [pack.contextLength];
}

/**
 * What fits, what does not, and why.
 *
 * `context` is the chosen length, `allowedBytes` the memory that the person allows (0: no limit),
 * `missingBytes` what is still to be downloaded.
 */
export function judge(
  pack: Package,
  device: Device,
  context: number,
  allowedBytes: number,
  missingBytes: number,
): Finding[] {
  return [
    ...judgeFeatures(pack, device),
    ...judgeLimits(pack, device),
    judgeMemory(pack, device, context, allowedBytes),
    judgeStorage(device, missingBytes),
    ...judgeConversation(pack),
  ];
}

function judgeConversation({ difference }: Package): Finding[] {
  if (!difference) return [];
  return [
    {
      kind: "risk",
      text: `Prompts in a browser are not as the model's chat template writes them (${difference}).`,
      hint: "Answers may differ from other programs'. provenance.json of the package shows what differs.",
    },
  ];
}

function judgeFeatures(pack: Package, device: Device): Finding[] {
  const missing = pack.requirements.features.filter((feature) => !device.features.has(feature));
  const { subgroupSize } = pack.requirements;
  if (!missing.length && device.subgroupSize < subgroupSize) {
    const known = device.subgroupSize > 0;
    const limits = SUBGROUP_LIMITS.find(([size]) => size <= device.subgroupSize)?.[1] ?? "default";
    return [
      {
        kind: known ? "blocks" : "risk",
        text: `The package was made for subgroups of ${subgroupSize} threads or more, and ${known ? `here they may have ${device.subgroupSize}` : "this browser does not say how large they are here"}.`,
        hint: `With smaller ones its answers would be wrong. Use the same model compiled with --limits ${limits}.`,
      },
    ];
  }
  if (!missing.length && pack.requirements.features.includes(SUBGROUP_MATRICES) && !multiplies(device)) {
    return [
      {
        kind: "blocks",
        text: "The package multiplies 16 x 16 matrices of 16-bit floats, and this graphics device has only other subgroup matrices.",
        hint: "Use the same model compiled with --limits h200.",
      },
    ];
  }
  return missing.map((feature) => missingFeature(pack, feature));
}

/** Whether the device may have the matrices that kernels use: 16 x 16 float16 operands, float32 sums. */
function multiplies({ matrixConfigs }: Device): boolean {
  const fitting = matrixConfigs.filter(
    ({ componentType, resultComponentType, M, N, K }) =>
      componentType === "f16" && resultComponentType === "f32" && [M, N, K].every((size) => size === 16),
  );
  return fitting.length > 0 || matrixConfigs.length === 0;
}

function missingFeature(pack: Package, feature: string): Finding {
  if (feature === F16) {
    return {
      kind: "blocks",
      text: `This package (${pack.recipe}) computes in 16-bit floats, and this browser does not offer them here (WebGPU feature ${F16}).`,
      hint: `Use the same model compiled with --quant ${pack.recipe.startsWith("q") ? "q4f32" : "f32"}, which needs none; or a newer browser or graphics driver.`,
    };
  }
  const isExperiment = feature === SUBGROUP_MATRICES;
  return {
    kind: "blocks",
    text: `The package needs the WebGPU feature ${feature}, and this browser does not offer it here.`,
    hint: isExperiment
      ? 'It is an experiment of Chrome\'s: switch on "Unsafe WebGPU Support" in chrome://flags, or use the same model compiled with --limits h200.'
      : "Compile the package without it (--limits default), or use another browser or driver.",
  };
}

function judgeLimits(pack: Package, device: Device): Finding[] {
  const findings: Finding[] = [];
  for (const [name, least] of Object.entries(CLIENT_LIMITS) as [LimitName, number][]) {
    const offered = device.limits[name];
    if (offered >= least) continue;
    findings.push({
      kind: "blocks",
      text: `The graphics device is too small for the WebLLM client: ${name} is ${formatCount(offered)}, and ${formatCount(least)} is needed.`,
      hint: "No package helps here; try a machine with a newer graphics device.",
    });
  }
  const largest = pack.requirements.maxBindingBytes;
  const binding = CLIENT_BINDINGS.find((size) => size <= device.limits.maxStorageBufferBindingSize) ?? 0;
  if (binding && largest > binding) {
    findings.push({
      kind: "blocks",
      text: `The package binds ${formatBytes(largest)} at once, and the client gets ${formatBytes(binding)} from this device.`,
      hint: "Compile it again with a shorter --context or --prefill-chunk, or with the default --limits.",
    });
  }
  if (!findings.length) {
    const how = device.isSoftware ? ", which computes in software: answers come slowly" : "";
    findings.push({ kind: "fits", text: `Runs on ${device.name}${how}` });
  }
  return findings;
}

function judgeMemory(pack: Package, device: Device, context: number, allowedBytes: number): Finding {
  const needed = neededMemory(pack, context);
  const size = formatBytes(needed);
  // Unified or not, a browser never gets all of the memory.
  const usable = device.memoryBytes * 0.75;
  const limit = allowedBytes || usable;
  if (!limit || needed <= limit || (!allowedBytes && needed <= SMALL_BYTES)) {
    return {
      kind: "fits",
      text: `Needs about ${size} of graphics memory at ${formatCount(context)} tokens of context`,
    };
  }
  const reason = allowedBytes
    ? `you allow ${formatBytes(allowedBytes)}`
    : `this device has about ${formatBytes(device.memoryBytes)} of memory in all`;
  const shorter = contextLengths(pack).find((length) => length < context && neededMemory(pack, length) <= limit);
  return {
    kind: allowedBytes ? "blocks" : "risk",
    text: `Needs about ${size} of graphics memory at ${formatCount(context)} tokens of context, and ${reason}.`,
    hint: shorter ? `Choose a context of ${formatCount(shorter)} tokens.` : smallerPackage(pack, limit),
  };
}

function smallerPackage(pack: Package, limit: number): string {
  const { recipe, requirements } = pack;
  const bits = Number(/^[qf](\d+)/.exec(recipe)?.[1] ?? 32);
  const in4 = (requirements.weightsBytes * 4.5) / (bits < 16 ? bits + 0.5 : bits);
  if (bits > 4 && in4 < limit) return `Compiled with --quant q4f16 the weights take about ${formatBytes(in4)}.`;
  return "Use a smaller model: gemma-4-E2B-it is the smallest of the family.";
}

function judgeStorage(device: Device, missingBytes: number): Finding {
  const free = device.freeStorageBytes;
  if (free !== undefined && missingBytes > free) {
    return {
      kind: "blocks",
      text: `The download takes ${formatBytes(missingBytes)}, and the browser lets this site store ${formatBytes(free)} more.`,
      hint: "Remove other downloaded models below, free space on the disk, or leave private browsing.",
    };
  }
  if (missingBytes === 0) return { kind: "fits", text: "Downloaded: it starts without the network" };
  return { kind: "fits", text: `Downloads ${formatBytes(missingBytes)}, once` };
}
