// Whether this browser can run a package: asked before the download, the client asks after it.
import {
  canSetSubgroups,
  isAlways,
  CLIENT_LIMITS,
  clientLimit,
  lacking,
  type LimitName,
  multiplies,
  SUBGROUP_MATRICES,
  type Traits,
} from "gemma4-web/choose";
import type { Package } from "./package";
import { formatBytes, formatCount, MIB } from "./units";

/** What the page found out about the device; plain data, so that tests can make it up. */
export interface Device extends Traits {
  name: string;
  /** It has no graphics processor: the processor computes what one would. */
  isSoftware: boolean;
  /** The machine's memory as the browser reports it, rounded and capped; 0: it reports none. */
  memoryBytes: number;
  /** What this site may still store; undefined: the browser reports nothing. */
  freeStorageBytes: number | undefined;
  /** A phone or a tablet. */
  isMobile?: boolean;
}

export interface Finding {
  /** fits: fine. risk: may go wrong, and the person may try. blocks: cannot work. */
  kind: "fits" | "risk" | "blocks";
  text: string;
  /** What to do about it. */
  hint?: string;
  /** Whether it is about memory, of which a smaller model takes less. */
  isMemory?: boolean;
}

const F16 = "shader-f16";
/** What to do about a package with one library, which is for other devices. */
const SEVERAL = "compile the package again without --limits and --activations: then it has libraries for every device";
/** Below this nobody has to think about memory. */
export const SMALL_BYTES = 256 * MIB;
const LEAST_CONTEXT = 256;
/** iOS, which tells a page nothing of the memory, ends one at about a gigabyte and a half, with the page's own. */
const PHONE_BYTES = 1.4 * 1024 * MIB;
// The Device Memory specification: what is reported is at most this, in browsers of before 2026.
const LARGEST_TOLD_BYTES = 8 * 1024 * MIB;

/** GPU memory in bytes at a context length of N tokens. */
export function neededMemory(pack: Pick<Package, "requirements" | "contextLength" | "table">, context: number): number {
  const { weightsBytes, kvSlidingBytes, kvFullBytes, activationBytes } = pack.requirements;
  const saved = pack.table?.place === "host" ? pack.table.savedBytes : 0;
  return weightsBytes + kvSlidingBytes + activationBytes - saved + (kvFullBytes * context) / pack.contextLength;
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
 * `missingBytes` what is still to be downloaded, `besideBytes` the memory of the page's other model.
 */
export function judge(
  pack: Package,
  device: Device,
  context: number,
  allowedBytes: number,
  missingBytes: number,
  besideBytes = 0,
): Finding[] {
  return [
    ...judgeFeatures(pack, device),
    ...judgeLimits(pack, device),
    judgeMemory(pack, device, context, allowedBytes, besideBytes),
    judgeStorage(pack, device, missingBytes),
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

/** Names of the libraries that run on a device. */
export function fitting({ libraries }: Pick<Package, "libraries">, device: Device): string[] {
  return libraries.filter(({ needs }) => lacking(needs, device).length === 0).map(({ name }) => name);
}

/** What to do where the library does not fit: another one of the package does, or another package would. */
function other(pack: Package, device: Device): string {
  const fits = fitting(pack, device);
  if (fits.length) return `choose another library of the package: ${fits.join(", ")}`;
  return pack.libraries.length > 1 ? "use another browser or driver" : SEVERAL;
}

function judgeFeatures(pack: Package, device: Device): Finding[] {
  const { features, subgroupSize } = pack.requirements;
  const missing = features.filter((feature) => !device.features.has(feature));
  if (pack.libraries.length > 1 && fitting(pack, device).length === 0) return noneFits(pack, device);
  if (!missing.length && device.subgroupMinSize < subgroupSize && !canSetSubgroups(subgroupSize, device)) {
    const known = device.subgroupMinSize > 0;
    return [
      {
        kind: known ? "blocks" : "risk",
        text: `The library was made for subgroups of ${subgroupSize} threads or more, and ${known ? `here they may have ${device.subgroupMinSize}` : "this browser does not say how large they are here"}.`,
        hint: `With smaller ones its answers would be wrong: ${other(pack, device)}.`,
      },
    ];
  }
  if (!missing.length && features.includes(SUBGROUP_MATRICES) && !multiplies(device)) {
    return [
      {
        kind: "blocks",
        text: "The library multiplies 16 x 16 matrices of 16-bit floats, and this graphics device has only other subgroup matrices.",
        hint: sentence(other(pack, device)),
      },
    ];
  }
  if (!missing.length && features.includes(SUBGROUP_MATRICES) && !isAlways(subgroupSize, device)) {
    return [
      {
        kind: "blocks",
        text: `The library multiplies matrices of subgroups of exactly ${subgroupSize} threads, and here they may have ${device.subgroupMaxSize}.`,
        hint: sentence(other(pack, device)),
      },
    ];
  }
  return [...missing.map((feature) => missingFeature(feature, other(pack, device))), ...languageFeatures(pack, device)];
}

/** What each library lacks, where none runs. */
function noneFits({ libraries }: Package, device: Device): Finding[] {
  const each = libraries.map(({ name, needs }) => `${name} needs ${lacking(needs, device).join(", ")}`);
  return [
    {
      kind: "blocks",
      text: `None of the package's ${libraries.length} libraries runs here: ${each.join("; ")}.`,
      hint: `Use another browser or graphics driver, or ${SEVERAL}.`,
    },
  ];
}

function languageFeatures(pack: Package, device: Device): Finding[] {
  const library = pack.libraries.find(({ file }) => file === pack.library);
  return (library?.needs.languageFeatures ?? [])
    .filter((feature) => !device.languageFeatures.has(feature))
    .map((feature) => ({
      kind: "blocks" as const,
      text: `The library is written with ${feature}, which this browser's shader language does not have.`,
      hint: sentence(other(pack, device)),
    }));
}

function sentence(text: string): string {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}

function missingFeature(feature: string, other: string): Finding {
  if (feature === F16) {
    return {
      kind: "blocks",
      text: `This library computes in 16-bit floats, and this browser does not offer them here (WebGPU feature ${F16}).`,
      hint: `${sentence(other).slice(0, -1)}; or use a newer browser or graphics driver.`,
    };
  }
  const isExperiment = feature === SUBGROUP_MATRICES;
  return {
    kind: "blocks",
    text: `The library needs the WebGPU feature ${feature}, and this browser does not offer it here.`,
    hint: isExperiment
      ? `It is an experiment of Chrome's: switch on "Unsafe WebGPU Support" in chrome://flags, or ${other}.`
      : sentence(other),
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
  const binding = clientLimit("maxStorageBufferBindingSize", device.limits.maxStorageBufferBindingSize);
  if (binding && largest > binding) {
    findings.push({
      kind: "blocks",
      text: `The library binds ${formatBytes(largest)} at once, and the client gets ${formatBytes(binding)} from this device.`,
      hint: "Compile it again with a shorter --context or --prefill-chunk, or with the default --limits.",
    });
  }
  if (!findings.length) {
    const how = device.isSoftware ? ", which computes in software: answers come slowly" : "";
    findings.push({ kind: "fits", text: `Runs on ${device.name}${how}` });
  }
  return findings;
}

function judgeMemory(
  pack: Package,
  device: Device,
  context: number,
  allowedBytes: number,
  besideBytes: number,
): Finding {
  const needed = neededMemory(pack, context) + besideBytes;
  const beside = besideBytes ? ` (${formatBytes(besideBytes)} of them for the page's other model)` : "";
  const size = formatBytes(needed);
  // Unified or not, a browser never gets all of the memory.
  const usable = device.memoryBytes * 0.75;
  const limit = allowedBytes || usable || (device.isMobile ? PHONE_BYTES : 0);
  if (!limit || needed <= limit || (!allowedBytes && needed <= SMALL_BYTES)) {
    return {
      kind: "fits",
      text: `Needs about ${size} of graphics memory${beside} at ${formatCount(context)} tokens of context`,
    };
  }
  const reason = allowedBytes
    ? `you allow ${formatBytes(allowedBytes)}`
    : usable
      ? `this device has about ${formatBytes(device.memoryBytes)} of memory in all`
      : `a phone or tablet may end a page that takes more than ${formatBytes(PHONE_BYTES)}`;
  const shorter = contextLengths(pack).find(
    (length) => length < context && neededMemory(pack, length) + besideBytes <= limit,
  );
  return {
    kind: allowedBytes || needed > mostMemory(device) ? "blocks" : "risk",
    text: `Needs about ${size} of graphics memory${beside} at ${formatCount(context)} tokens of context, and ${reason}.`,
    hint: shorter ? `Choose a context of ${formatCount(shorter)} tokens.` : smallerPackage(pack, limit),
    isMemory: true,
  };
}

/** What the machine can have at most: a browser rounds to a power of two, and the largest one may stand for any more. */
function mostMemory({ memoryBytes }: Device): number {
  return memoryBytes && memoryBytes < LARGEST_TOLD_BYTES ? memoryBytes * 1.5 : Infinity;
}

function smallerPackage(pack: Package, limit: number): string {
  const { recipe, requirements } = pack;
  const bits = Number(/^[qf](\d+)/.exec(recipe)?.[1] ?? 32);
  const in4 = (requirements.weightsBytes * 4.5) / (bits < 16 ? bits + 0.5 : bits);
  if (bits > 4 && in4 < limit) return `Compiled with --quant q4f16 the weights take about ${formatBytes(in4)}.`;
  return `Use a smaller model (gemma-4-E2B-it is the smallest of the family), or compile this one with --fit ${Math.floor(limit / MIB)}MiB.`;
}

function judgeStorage({ table }: Package, device: Device, missingBytes: number): Finding {
  const free = device.freeStorageBytes;
  if (free !== undefined && missingBytes > free) {
    return {
      kind: "blocks",
      text: `The download takes ${formatBytes(missingBytes)}, and the browser lets this site store ${formatBytes(free)} more.`,
      hint: "Remove other downloaded models below, free space on the disk, or leave private browsing.",
    };
  }
  const file = table?.place === "host" && missingBytes > 0 ? table.savedBytes : 0; // later it is kept
  if (free !== undefined && missingBytes + file > free) {
    return {
      kind: "risk",
      text: `Beside the download of ${formatBytes(missingBytes)}, per-layer embeddings take ${formatBytes(file)} of the browser's storage, which lets this site store ${formatBytes(free)} more.`,
      hint: "Without that room they stay on the graphics device. Remove other downloaded models, or free space on the disk.",
    };
  }
  if (missingBytes === 0) return { kind: "fits", text: "Downloaded: it starts without the network" };
  return { kind: "fits", text: `Downloads ${formatBytes(missingBytes)}, once` };
}
