// How fast and how right a library is on a device, by those of its kernels with known answers that a decoded token
// costs most: a few launches of each, in one submission.
import { PassedTests } from "../selftest/known_answer_store";
import {
  KnownAnswerTest,
  padded,
  testedAdapter,
  uniformOf,
  workgroupsOf,
  type AdapterText,
  type Keeper,
} from "../selftest/known_answers";
import { byteSize, type Case, type KnownAnswers } from "../selftest/known_answer_format";
import { elementsOf } from "../selftest/known_inputs";
import { COMPUTE, COPY_DST, STORAGE, UNIFORM } from "../gpu/constants";
import { hasClock, PassClock, type TimedDevice } from "../gpu/pass_clock";
import { pinSubgroupSize } from "../gpu/subgroup_size";
import { nextTurn } from "../gpu/waits";
import { bindingTypes, type LibraryFile } from "./library_file";

/** Why nothing is known of a library's speed. */
export interface Failure {
  /**
   * wrong: it computes wrong results, or the device refuses it. late: time was up. lost: the device is gone, perhaps
   * by this library. unknown: there was no memory, or the device could not be asked.
   */
  kind: "wrong" | "late" | "lost" | "unknown";
  message: string;
}

/** A library whose kernels of a decoded token are right. */
export interface Ready {
  kind: "right";
  /** Microseconds of the kernels of a token, once; a Failure where there was no time, or the device was lost. */
  sample(): Promise<number | Failure>;
  /** Frees its buffers. */
  end(): void;
}

/** The clock of a measurement, which ends it. */
export interface Budget {
  now(): number;
  readonly end: number;
}

export type Adapter = AdapterText & { readonly subgroupMaxSize?: number };
/** Runs what uses the device's time, one after the other: what ran beside it would be measured, too. */
export type InTurn = <T>(action: () => Promise<T>) => Promise<T>;

/** Launches of a case in a token, roughly: the largest matmuls of a layer to its attention. */
const LAUNCHES: Readonly<Record<string, number>> = { "matmul of one token": 2, "attention of one token": 1 };
/** How often the cases run in a submission at most. */
const MOST_ROUNDS = 128;
export const LATE: unique symbol = Symbol("time is up");
/** How browsers say that a pipeline was not made for another reason than its kernel. */
const NOT_ITS_FAULT = /memory|\blost\b|destroyed/i;
const LOST: Failure = { kind: "lost", message: "the device was lost" };
const NO_TIME: Failure = { kind: "late", message: "there was no time left to measure it" };

interface Made {
  pipeline: GPUComputePipeline;
  layout: GPUBindGroupLayout;
}

/** The device does not make a kernel's pipeline. */
class Refused extends Error {}

interface Timed {
  launches: { pipeline: GPUComputePipeline; group: GPUBindGroup; workgroups: [number, number, number] }[];
  times: number;
}

/** Makes the kernels of a decoded token, and checks them; where they are right they can be timed. */
export async function prepare(
  device: GPUDevice,
  file: LibraryFile,
  adapter: Adapter,
  budget: Budget,
  inTurn: InTurn,
): Promise<Ready | Failure> {
  const all = file.answers();
  const cases = all?.cases.filter(({ title }) => Object.hasOwn(LAUNCHES, title)) ?? [];
  if (!all || cases.length === 0) return { kind: "unknown", message: "it brings no known answers" };
  const measurement = new Measurement(device, { ...all, cases }, adapter, budget);
  const made = await measurement.within(async () => {
    const kernels = await measurement.compile(file);
    return inTurn(async () => (await measurement.check(kernels)) ?? (await measurement.prepare(kernels)));
  });
  const failure = made === LATE ? NO_TIME : made;
  if (failure) {
    measurement.end();
    return failure;
  }
  return {
    kind: "right",
    sample: async () => {
      const found = await measurement.within(() => measurement.sample());
      return found === LATE ? NO_TIME : found;
    },
    end: () => measurement.end(),
  };
}

/** Checks all kernels with known answers; undefined: they are right. */
export async function check(
  device: GPUDevice,
  file: LibraryFile,
  adapter: Adapter,
  budget: Budget,
): Promise<Failure | undefined> {
  const answers = file.answers()!;
  // The load of a model whose kernels all passed here need not test them again.
  const keeper = await PassedTests.open(answers, adapter);
  const measurement = new Measurement(device, answers, adapter, budget, keeper);
  const found = await measurement.within(async () => measurement.check(await measurement.compile(file)));
  measurement.end();
  return found === LATE ? NO_TIME : found;
}

class Measurement {
  private readonly made: { destroy(): void }[] = [];
  private timed: Timed[] = [];
  private clock: PassClock | undefined;
  private isOver = false;
  private isLost = false;
  /** Of one round of all cases, by the last sample. */
  private microseconds = 0;

  constructor(
    private readonly device: GPUDevice,
    private readonly answers: KnownAnswers,
    private readonly adapter: Adapter,
    private readonly budget: Budget,
    private readonly keeper?: Keeper,
  ) {
    void device.lost.then(() => (this.isLost = true));
  }

  /** What comes of a part in the time that is left. What it throws is a Failure. */
  async within<T>(part: () => Promise<T>): Promise<T | Failure | typeof LATE> {
    return endsInTime(part(), this.budget).catch((error: unknown) => this.failureOf(error));
  }

  end(): void {
    this.isOver = true;
    for (const each of this.made.splice(0)) each.destroy();
  }

  async compile(file: LibraryFile): Promise<Map<string, Made>> {
    const names = [...new Set(this.answers.cases.flatMap(({ launches }) => launches.map(({ kernel }) => kernel)))];
    const made = await Promise.all(names.map((name) => this.compileOne(file, name)));
    return new Map(names.map((name, index) => [name, made[index]!]));
  }

  /** Undefined where every case's results are right. */
  async check(kernels: ReadonlyMap<string, Made>): Promise<Failure | undefined> {
    const tested = testedAdapter(this.adapter, this.device.features);
    const test = new KnownAnswerTest(this.device, this.answers, tested, this.keeper);
    for (const [name, { pipeline, layout }] of kernels) {
      const problem = this.isOver ? undefined : await test.check(name, pipeline, layout);
      if (problem) return { kind: "wrong", message: problem.message };
    }
    if (!test.passed) throw new Error("the device could not run its kernels");
    return undefined;
  }

  /** Throws where the device has no room for the cases: what did not run would be the fastest of all. */
  async prepare(kernels: ReadonlyMap<string, Made>): Promise<undefined> {
    const { device } = this;
    device.pushErrorScope("out-of-memory");
    device.pushErrorScope("validation");
    let scopes: Promise<GPUError | null>[];
    try {
      this.timed = this.answers.cases.map((item) => this.prepareOne(item, kernels));
      this.clock = new PassClock(timedDevice(device), hasClock(device), this.budget.now);
      this.made.push(this.clock);
    } finally {
      scopes = [device.popErrorScope(), device.popErrorScope()];
    }
    const error = (await Promise.all(scopes)).find((each) => each !== null);
    if (error) throw new Error(`it could not be timed: ${error.message}`);
  }

  /** The first sample is one round, by which the next ones are as long as a clock needs. */
  async sample(): Promise<number | Failure> {
    const { now, end } = this.budget;
    const wanted = this.microseconds ? Math.round(this.clock!.aim / this.microseconds) : 1;
    const rounds = Math.max(1, Math.min(MOST_ROUNDS, wanted));
    if (this.isOver || now() + (rounds * this.microseconds) / 1000 > end) return NO_TIME;
    this.microseconds = (await this.time(rounds)) / rounds;
    await nextTurn(); // waits of a lost device end, too
    return this.isLost ? LOST : this.microseconds;
  }

  /** What an error says of the library: that it is wrong only where the device is there and refuses its kernel. */
  private async failureOf(error: unknown): Promise<Failure> {
    await nextTurn(); // a loss may be told after what it broke
    if (this.isLost) return LOST;
    const isRefused = error instanceof Refused && !NOT_ITS_FAULT.test(error.message);
    return { kind: isRefused ? "wrong" : "unknown", message: String((error as Error).message ?? error) };
  }

  private async compileOne(file: LibraryFile, name: string): Promise<Made> {
    const { device } = this;
    const text = file.kernel(name);
    if (text === undefined) throw new Error(`its file has no kernel ${name}`);
    const code = pinSubgroupSize(text, this.answers.subgroupSize, device, this.adapter);
    const layout = device.createBindGroupLayout({
      entries: bindingTypes(code).map((type, binding) => ({ binding, visibility: COMPUTE, buffer: { type } })),
    });
    const made = device.createComputePipelineAsync({
      layout: device.createPipelineLayout({ bindGroupLayouts: [layout] }),
      compute: { module: device.createShaderModule({ code }), entryPoint: name },
    });
    const pipeline = await made.catch((error: unknown) => {
      throw new Refused(String((error as Error).message ?? error));
    });
    return { pipeline, layout };
  }

  private create(size: number, usage: number): GPUBuffer {
    if (this.isOver) throw new Error("the measurement is over");
    const buffer = this.device.createBuffer({ size, usage });
    this.made.push(buffer);
    return buffer;
  }

  private prepareOne(item: Case, kernels: ReadonlyMap<string, Made>): Timed {
    const { queue } = this.device;
    const buffers = item.buffers.map((input) => {
      const buffer = this.create(byteSize(input), STORAGE | COPY_DST);
      queue.writeBuffer(buffer, 0, padded(elementsOf(input)));
      return buffer;
    });
    const launches = item.launches.map((launch) => {
      const { pipeline, layout } = kernels.get(launch.kernel)!;
      const words = uniformOf(launch);
      const uniform = this.create(words.byteLength, UNIFORM | COPY_DST);
      queue.writeBuffer(uniform, 0, words);
      const bound = [...launch.buffers.map((index) => buffers[index]!), uniform];
      const entries = bound.map((buffer, binding) => ({ binding, resource: { buffer } }));
      return { pipeline, group: this.device.createBindGroup({ layout, entries }), workgroups: workgroupsOf(launch) };
    });
    return { launches, times: LAUNCHES[item.title]! };
  }

  /** Microseconds of so many rounds of all cases. */
  private async time(rounds: number): Promise<number> {
    return this.clock!.time((pass) => {
      for (let round = 0; round < rounds; round++) {
        for (const { launches, times } of this.timed) {
          for (let again = 0; again < times; again++) {
            for (const { pipeline, group, workgroups } of launches) {
              pass.setPipeline(pipeline);
              pass.setBindGroup(0, group);
              pass.dispatchWorkgroups(...workgroups);
            }
          }
        }
      }
    });
  }
}

function timedDevice(device: GPUDevice): TimedDevice {
  return {
    createBuffer: (descriptor) => device.createBuffer(descriptor),
    createQuerySet: (descriptor) => device.createQuerySet(descriptor),
    createCommandEncoder: (descriptor) => device.createCommandEncoder(descriptor),
    submit: (buffers) => device.queue.submit(buffers),
    onSubmittedWorkDone: () => device.queue.onSubmittedWorkDone() as Promise<undefined>,
  };
}

/** What the work gives, or LATE; what ends after its time is nobody's. */
export async function endsInTime<T>(work: Promise<T>, { now, end }: Budget): Promise<T | typeof LATE> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<typeof LATE>((resolve) => {
    timer = setTimeout(() => resolve(LATE), Math.max(0, Math.ceil(end - now())) + 1);
  });
  work.catch(() => undefined);
  return Promise.race([work, late]).finally(() => clearTimeout(timer));
}
