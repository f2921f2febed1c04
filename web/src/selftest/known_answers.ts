// Runs some of a library's own kernels on known inputs and compares what the device makes of them. A driver may be
// wrong in ways that no feature or limit shows, and the model would then talk nonsense.
import { COPY_DST, COPY_SRC, MAP_READ, READ, STORAGE, UNIFORM } from "../gpu/constants";
import { byteSize, type Case, type Expectation, type KnownAnswers, type Launch } from "./known_answer_format";
import {
  bytesPerElement,
  decoded,
  elementsOf,
  numbersOf,
  samplePositions,
  type Elements,
  type KnownInput,
} from "./known_inputs";

export { parseKnownAnswers, type KnownAnswers } from "./known_answer_format";

/** The fields of `GPUAdapterInfo` about the device; without `subgroupMinSize` where the kernels' size is pinned. */
export type AdapterText = Pick<GPUAdapterInfo, "vendor" | "architecture" | "device" | "description"> & {
  readonly subgroupMinSize?: number;
};

/** What of an adapter matters to its device's test: with their size pinned kernels do not depend on the smallest subgroup. */
export function testedAdapter(
  { vendor, architecture, device, description, subgroupMinSize }: AdapterText,
  features: ReadonlySet<string>,
): AdapterText {
  const isPinned = features.has("subgroup-size-control");
  return { vendor, architecture, device, description, ...(!isPinned && subgroupMinSize ? { subgroupMinSize } : {}) };
}

type Queue = Pick<GPUQueue, "writeBuffer" | "submit">;
export type TestedDevice = Pick<
  GPUDevice,
  "createBuffer" | "createBindGroup" | "createCommandEncoder" | "limits" | "pushErrorScope" | "popErrorScope"
> & { readonly queue: Queue };

/** Where it is kept that a device passed: `PassedTests`. */
export interface Keeper {
  add(): Promise<void>;
  forget(): Promise<void>;
}

/** A kernel that answers what it must not. */
export interface Problem {
  kernel: string;
  /** The device, what was expected and found, and, after a line break, what to do. */
  message: string;
}

interface Pipeline {
  pipeline: GPUComputePipeline;
  layout: GPUBindGroupLayout;
}

interface Difference {
  wrong: number;
  samples: number;
  position: number;
  expected: number;
  found: number;
}

/** What the page recognises a problem's message by. */
export const WRONG_DEVICE = "computes wrong results";

const SEVERAL = "A package has several where it was compiled without --limits and --activations.";

const MAX_GRID_X = 65_535;
// A case takes milliseconds. A device that hangs is the client's to report.
const PATIENCE_MS = 30_000;

export class KnownAnswerTest {
  private readonly pipelines = new Map<string, Pipeline>();
  private readonly waiting: Set<Case>;
  private equal = 0;
  /** Time that the cases have taken, without that of making pipelines. */
  milliseconds = 0;
  private last: Promise<unknown> = Promise.resolve();

  constructor(
    private readonly device: TestedDevice,
    private readonly answers: KnownAnswers,
    private readonly adapter: AdapterText,
    private readonly keeper?: Keeper,
  ) {
    this.waiting = new Set(answers.cases);
  }

  /** Whether every case ran and every answer was right. */
  get passed(): boolean {
    return this.equal === this.answers.cases.length;
  }

  /** Whether a case needs this kernel. */
  needs(kernel: string): boolean {
    return this.answers.cases.some(({ launches }) => launches.some((launch) => launch.kernel === kernel));
  }

  /**
   * Runs the cases that were waiting for this kernel alone, one after the other.
   *
   * Undefined: nothing is wrong, or nothing could be found out (no memory, a lost device); `passed` tells them apart.
   */
  check(kernel: string, pipeline: GPUComputePipeline, layout: GPUBindGroupLayout): Promise<Problem | undefined> {
    if (!this.needs(kernel)) return Promise.resolve(undefined);
    this.pipelines.set(kernel, { pipeline, layout });
    const ready = [...this.waiting].filter(({ launches }) =>
      launches.every((launch) => this.pipelines.has(launch.kernel)),
    );
    for (const item of ready) this.waiting.delete(item);
    const result = this.last.then(async () => {
      let problem: Problem | undefined;
      const begin = performance.now();
      for (const item of ready) problem ??= await this.examine(item);
      this.milliseconds += performance.now() - begin;
      if (problem) await this.keeper?.forget();
      else if (ready.length && this.passed) await this.keeper?.add();
      return problem;
    });
    this.last = result;
    return result;
  }

  private async examine(item: Case): Promise<Problem | undefined> {
    const found = await this.run(item).catch(() => undefined);
    if (!found) return undefined;
    for (const [index, result] of item.results.entries()) {
      const difference = compare(result, item.buffers[result.buffer]!, found[index]!);
      if (difference) return this.problem(item, result, difference);
    }
    this.equal += 1;
    return undefined;
  }

  /** The bytes of each result, or undefined where the device could not run the case. */
  private async run(item: Case): Promise<Uint8Array<ArrayBuffer>[] | undefined> {
    const { device } = this;
    if (item.buffers.some((buffer) => byteSize(buffer) > device.limits.maxStorageBufferBindingSize)) return undefined;
    const made: GPUBuffer[] = [];
    const create = (size: number, usage: number): GPUBuffer => {
      const buffer = device.createBuffer({ size, usage });
      made.push(buffer);
      return buffer;
    };
    try {
      // Scopes are a stack of the device: nothing may be awaited between push and pop.
      device.pushErrorScope("out-of-memory");
      device.pushErrorScope("validation");
      let copied: { staging: GPUBuffer; parts: Part[] } | undefined;
      let scopes: Promise<GPUError | null>[];
      try {
        copied = this.submit(item, create);
      } finally {
        scopes = [device.popErrorScope(), device.popErrorScope()];
      }
      const errors = Promise.all(scopes);
      const { staging, parts } = copied;
      const mapped = await within(
        PATIENCE_MS,
        staging.mapAsync(READ).then(() => errors),
      );
      if (!mapped || mapped.some((error) => error !== null)) return undefined;
      const bytes = new Uint8Array(staging.getMappedRange()).slice();
      return parts.map(({ at, skip, size }) => bytes.slice(at + skip, at + skip + size));
    } finally {
      for (const buffer of made) buffer.destroy();
    }
  }

  private submit(
    item: Case,
    create: (size: number, usage: number) => GPUBuffer,
  ): { staging: GPUBuffer; parts: Part[] } {
    const { device } = this;
    const buffers = item.buffers.map((input) => {
      const buffer = create(byteSize(input), STORAGE | COPY_SRC | COPY_DST);
      device.queue.writeBuffer(buffer, 0, padded(elementsOf(input)));
      return buffer;
    });
    const encoder = device.createCommandEncoder();
    for (const launch of item.launches) this.encode(encoder, launch, buffers, create);
    const parts: Part[] = [];
    let size = 0;
    for (const result of item.results) {
      const part = partOf(result, item.buffers[result.buffer]!, size);
      parts.push(part);
      size += part.copied;
    }
    const staging = create(size, MAP_READ | COPY_DST);
    for (const [index, part] of parts.entries()) {
      encoder.copyBufferToBuffer(buffers[item.results[index]!.buffer]!, part.from, staging, part.at, part.copied);
    }
    device.queue.submit([encoder.finish()]);
    return { staging, parts };
  }

  /** As the client launches a kernel. */
  private encode(
    encoder: GPUCommandEncoder,
    launch: Launch,
    buffers: GPUBuffer[],
    create: (size: number, usage: number) => GPUBuffer,
  ): void {
    const { device } = this;
    const { pipeline, layout } = this.pipelines.get(launch.kernel)!;
    const words = uniformOf(launch);
    const uniform = create(words.byteLength, UNIFORM | COPY_DST);
    device.queue.writeBuffer(uniform, 0, words);
    const bindings = [...launch.buffers.map((index) => buffers[index]!), uniform];
    const pass = encoder.beginComputePass();
    pass.setPipeline(pipeline);
    pass.setBindGroup(
      0,
      device.createBindGroup({
        layout,
        entries: bindings.map((buffer, binding) => ({ binding, resource: { buffer } })),
      }),
    );
    pass.dispatchWorkgroups(...workgroupsOf(launch));
    pass.end();
  }

  private problem(item: Case, result: Expectation, difference: Difference): Problem {
    const { kernel } = item.launches.at(-1)!;
    const { wrong, samples, position, expected, found } = difference;
    const what =
      `${deviceName(this.adapter)} ${WRONG_DEVICE} with this package (${item.title}, kernel ${kernel}): ` +
      `${wrong} of ${samples} samples of \`${result.name}\` are off; element ${position} has to be ${shown(expected)}, and is ${shown(found)}.`;
    return { kernel, message: `${what}\n${this.advice()}` };
  }

  private advice(): string {
    const { subgroupSize } = this.answers;
    const least = this.adapter.subgroupMinSize ?? 0;
    if (subgroupSize && least && least < subgroupSize) {
      return (
        `This library was compiled for subgroups of ${subgroupSize} threads or more, and here they may have ${least}: ` +
        `use another library of the package. ${SEVERAL}`
      );
    }
    const other = `If that does not help, use another library of the package, or another graphics device. ${SEVERAL}`;
    return `The model would answer nonsense. Update the graphics driver and the browser. ${other}`;
  }
}

/** A launch's scalars as the client hands them over: the uniform ends with the grid's x. */
export function uniformOf({ scalars, grid }: Launch): Uint32Array<ArrayBuffer> {
  return Uint32Array.from([...scalars, grid[0]]);
}

/** The workgroups of a launch: as the client does, those along x go along z where they are too many. */
export function workgroupsOf({ grid }: Launch): [number, number, number] {
  let [x, y, z] = grid;
  while (x > MAX_GRID_X) {
    x = Math.ceil(x / 2);
    z *= 2;
  }
  return [x, y, z];
}

/** A result's place in its buffer and in what is read back; copies begin and end at multiples of 4. */
interface Part {
  from: number;
  copied: number;
  at: number;
  skip: number;
  size: number;
}

function partOf({ first, count }: Expectation, { dtype }: KnownInput, at: number): Part {
  const begin = first * bytesPerElement(dtype);
  const size = count * bytesPerElement(dtype);
  const from = begin - (begin % 4);
  return { from, copied: Math.ceil((begin + size) / 4) * 4 - from, at, skip: begin - from, size };
}

/** Elements of a buffer, whose size is a multiple of 4 bytes. */
export function padded(elements: Elements): Elements {
  if (elements.byteLength % 4 === 0) return elements;
  const whole = new Uint16Array(elements.length + 1);
  whole.set(elements);
  return whole;
}

/** The first sample that is off, or undefined if none is. */
function compare(result: Expectation, { dtype }: KnownInput, bytes: Uint8Array<ArrayBuffer>): Difference | undefined {
  const positions = samplePositions(result.first, result.count);
  const width = bytesPerElement(dtype);
  const sampled = new Uint8Array(positions.length * width);
  for (const [index, position] of positions.entries()) {
    const begin = (position - result.first) * width;
    sampled.set(bytes.subarray(begin, begin + width), index * width);
  }
  const expected = decoded(result.expected);
  const wrong =
    result.moved === undefined
      ? differing(result, numbersOf(dtype, expected), numbersOf(dtype, sampled))
      : moved(expected, sampled, result.moved);
  const [index] = wrong;
  if (index === undefined) return undefined;
  return {
    wrong: wrong.length,
    samples: positions.length,
    position: positions[index]!,
    expected: numbersOf(dtype, expected)[index]!,
    found: numbersOf(dtype, sampled)[index]!,
  };
}

/** Samples further off than they may be; one that is no number is. */
function differing({ absolute, relative }: Expectation, expected: number[], found: number[]): number[] {
  return [...expected.keys()].filter((index) => {
    const [right, value] = [expected[index]!, found[index]!];
    return !(right === value || Math.abs(right - value) <= absolute + relative * Math.abs(right));
  });
}

/** Words of int8 values that are off: `most` values may be off by one, where sums were rounded another way. */
function moved(expected: Uint8Array, found: Uint8Array, most: number): number[] {
  const off = Array.from(expected, (byte, index) => Math.abs(((byte << 24) >> 24) - ((found[index]! << 24) >> 24)));
  const wordsOf = (least: number) => [
    ...new Set([...off.keys()].filter((index) => off[index]! >= least).map((index) => index >> 2)),
  ];
  const far = wordsOf(2);
  return far.length || off.filter((by) => by > 0).length <= most ? far : wordsOf(1);
}

function deviceName({ vendor, architecture, device, description }: AdapterText): string {
  return description || [vendor, architecture, device].filter(Boolean).join(" ") || "This graphics device";
}

function shown(value: number): string {
  return Number.isInteger(value) ? String(value) : value.toPrecision(6);
}

async function within<T>(milliseconds: number, promise: Promise<T>): Promise<T | undefined> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<undefined>((resolve) => (timer = setTimeout(() => resolve(undefined), milliseconds)));
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}
