// What the kernels of a step take: those of each name together, as often as a clock needs.
import type { BufferState } from "../gpu/buffers";
import type { PassClock } from "../gpu/pass_clock";
import type { Launch } from "../gpu/stream";
import type { KernelTime } from "./times";

/** Operators that read all that they are given: of experts and of tables a few rows are read. */
const READS_ALL = /^(?!.*expert)\w*linear$/;
/** A submission has no more workgroups where it is not known how long they take: systems reset a GPU that is busy for seconds. */
const MOST_WORKGROUPS = 16_384;
/** Launches in a pass: of a kernel of two microseconds they take as long as a clock of 0.1 ms wants. */
const MOST_LAUNCHES = 2048;
/** A pass that was too short for the clock may have taken next to nothing, or all that the clock cannot tell. */
const MOST_GROWTH = 8;
const SAMPLES = 3;
/** In microseconds: what takes longer is not issued again. The first time anything may come between. */
const LONG = 100_000;

/** Of what a library's metadata say: the kind of each kernel's operator. */
export function operatorsOf(metadata: string | undefined): ReadonlyMap<string, string> {
  try {
    const { kernels } = JSON.parse(metadata ?? "{}") as { kernels?: Record<string, string> };
    const kinds = Object.entries(kernels ?? {}).map(
      ([name, text]) => [name, String((JSON.parse(text) as { kind?: unknown }).kind ?? "")] as const,
    );
    return new Map(kinds);
  } catch {
    return new Map();
  }
}

/** A function of the library, whose kernels are `NAME_kernel`, `NAME_kernel_1` and so on. */
const functionOf = (kernel: string) => kernel.replace(/_kernel(_\d+)?$/, "");

/** Times of the kernels of `launches`, longest first. Their buffers hold anything afterwards. */
export async function timeKernels(
  clock: PassClock,
  launches: readonly Launch[],
  nameOf: (pipeline: GPUComputePipeline) => string | undefined,
  operators: ReadonlyMap<string, string>,
): Promise<KernelTime[]> {
  const byKernel = new Map<string, Launch[]>();
  for (const launch of launches) {
    const kernel = functionOf(nameOf(launch.pipeline) ?? "unknown");
    byKernel.set(kernel, [...(byKernel.get(kernel) ?? []), launch]);
  }
  const written = new Set(launches.flatMap(({ group }) => group.storage.filter((_, i) => group.writes[i])));
  const found: Omit<KernelTime, "share">[] = [];
  for (const [kernel, own] of byKernel) {
    const operator = operators.get(kernel) ?? "";
    const microseconds = await timeLaunches(clock, own);
    const bytes = READS_ALL.test(operator) ? { bytes: bytesRead(own, written) } : {};
    found.push({ kernel, operator, launches: own.length, microseconds, ...bytes });
  }
  const total = found.reduce((sum, { microseconds }) => sum + microseconds, 0);
  return found
    .map((each) => ({ ...each, share: total ? each.microseconds / total : 0 }))
    .sort((a, b) => b.microseconds - a.microseconds);
}

/** Of buffers that nothing in the step writes: activations lie in buffers of a pool, which are larger than they are. */
function bytesRead(launches: readonly Launch[], written: ReadonlySet<BufferState>): number {
  const sizes = launches.flatMap(({ group }) =>
    group.storage.filter((state) => !written.has(state)).map(({ buffer }) => buffer.size),
  );
  return sizes.reduce((sum, size) => sum + size, 0);
}

async function timeLaunches(clock: PassClock, launches: readonly Launch[]): Promise<number> {
  let once = 0;
  for (const part of inParts(launches)) once += await clock.time((pass) => issue(pass, part, 1));
  if (once > LONG) return once;
  const most = Math.max(1, Math.floor(MOST_LAUNCHES / launches.length));
  const times = [once];
  for (let rounds = 1; ; ) {
    if (median(times) < clock.aim && rounds < most) {
      const wanted = Math.ceil((1.25 * rounds * clock.aim) / median(times));
      rounds = Math.min(most, MOST_GROWTH * rounds, Math.max(2 * rounds, wanted));
      times.length = 0;
    } else if (times.length === SAMPLES) return median(times) / rounds;
    times.push(await clock.time((pass) => issue(pass, launches, rounds)));
  }
}

const median = (times: readonly number[]) => [...times].sort((a, b) => a - b)[times.length >> 1]!;

function inParts(launches: readonly Launch[]): Launch[][] {
  const parts: Launch[][] = [];
  let workgroups = MOST_WORKGROUPS;
  for (const launch of launches) {
    if (workgroups >= MOST_WORKGROUPS) {
      parts.push([]);
      workgroups = 0;
    }
    parts.at(-1)!.push(launch);
    workgroups += launch.x * launch.y * launch.z;
  }
  return parts;
}

function issue(pass: GPUComputePassEncoder, launches: readonly Launch[], rounds: number): void {
  for (let round = 0; round < rounds; round++) {
    for (const { pipeline, group, x, y, z } of launches) {
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, group.group);
      pass.dispatchWorkgroups(x, y, z);
    }
  }
}
