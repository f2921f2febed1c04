// How fast and how right a library is on a device, by those of its kernels with known answers that a decoded token
// costs most: a few launches of each, in one submission.
import { PassedTests } from "../known_answer_store";
import {
  KnownAnswerTest,
  padded,
  testedAdapter,
  uniformOf,
  workgroupsOf,
  type AdapterText,
  type Keeper,
} from "../known_answers";
import { byteSize, type Case, type KnownAnswers } from "../known_answer_format";
import { elementsOf } from "../known_inputs";
import { pinSubgroupSize } from "../subgroup_size";
import { bindingTypes, type LibraryFile } from "./library_file";

export type Outcome =
  | { kind: "right"; microseconds: number }
  | { kind: "wrong"; message: string }
  /** Time or memory was up, or the device could not be asked. */
  | { kind: "unknown"; message: string }
  /** The device is gone, perhaps by this library. */
  | { kind: "lost"; message: string };

/** The clock of a measurement, which ends it. */
export interface Budget {
  now(): number;
  readonly end: number;
}

/** Launches of a case in a token, roughly: a layer has six matmuls to one attention. */
const LAUNCHES: Readonly<Record<string, number>> = { "matmul of one token": 6, "attention of one token": 1 };
/** What the timed submission is to take, and how often the cases run in it at most. */
const AIM_MICROSECONDS = 4000;
const MOST_ROUNDS = 32;
const FIRST_ROUNDS = 2;
const POLL_MS = 1;
export const LATE: unique symbol = Symbol("time is up");
// GPUBufferUsage, GPUMapMode and GPUShaderStage, which Node does not have as globals.
const MAP_READ = 0x1;
const COPY_SRC = 0x4;
const COPY_DST = 0x8;
const UNIFORM = 0x40;
const STORAGE = 0x80;
const QUERY_RESOLVE = 0x200;
const READ = 0x1;
const COMPUTE = 0x4;
/** How browsers say that a pipeline was not made for another reason than its kernel. */
const NOT_ITS_FAULT = /memory|\blost\b|destroyed/i;
const LOST: Outcome = { kind: "lost", message: "the device was lost" };

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

type Adapter = AdapterText & { readonly subgroupMaxSize?: number };

/** Checks the kernels of a decoded token, and times them where they are right. */
export function measure(device: GPUDevice, file: LibraryFile, adapter: Adapter, budget: Budget): Promise<Outcome> {
  return examine(device, file, adapter, budget, true);
}

/** Checks all kernels with known answers. */
export function check(device: GPUDevice, file: LibraryFile, adapter: Adapter, budget: Budget): Promise<Outcome> {
  return examine(device, file, adapter, budget, false);
}

async function examine(
  device: GPUDevice,
  file: LibraryFile,
  adapter: Adapter,
  budget: Budget,
  isTimed: boolean,
): Promise<Outcome> {
  const all = file.answers();
  const cases = all?.cases.filter(({ title }) => !isTimed || Object.hasOwn(LAUNCHES, title)) ?? [];
  if (!all || cases.length === 0) return { kind: "unknown", message: "it brings no known answers" };
  const answers: KnownAnswers = { ...all, cases };
  // The load of a model whose kernels all passed here need not test them again.
  const keeper = isTimed ? undefined : await PassedTests.open(answers, adapter);
  const measurement = new Measurement(device, answers, adapter, budget, keeper);
  // Some browsers look for finished work at a slow timer, and at every submission: empty ones make them look.
  const poll = setInterval(() => device.queue.submit([]), POLL_MS);
  const outcome = await endsInTime(measurement.run(file, isTimed), budget)
    .catch((error: unknown) => measurement.outcomeOf(error))
    .finally(() => clearInterval(poll));
  measurement.end();
  return outcome === LATE ? { kind: "unknown", message: "there was no time left to measure it" } : outcome;
}

class Measurement {
  private readonly made: { destroy(): void }[] = [];
  private isOver = false;
  private isLost = false;

  constructor(
    private readonly device: GPUDevice,
    private readonly answers: KnownAnswers,
    private readonly adapter: Adapter,
    private readonly budget: Budget,
    private readonly keeper: Keeper | undefined,
  ) {
    void device.lost.then(() => (this.isLost = true));
  }

  /** What an error says of the library: that it is wrong only where the device is there and refuses its kernel. */
  async outcomeOf(error: unknown): Promise<Outcome> {
    await new Promise((resolve) => setTimeout(resolve, 0)); // a loss may be told after what it broke
    if (this.isLost) return LOST;
    const isRefused = error instanceof Refused && !NOT_ITS_FAULT.test(error.message);
    return { kind: isRefused ? "wrong" : "unknown", message: String((error as Error).message ?? error) };
  }

  end(): void {
    this.isOver = true;
    for (const each of this.made.splice(0)) each.destroy();
  }

  async run(file: LibraryFile, isTimed: boolean): Promise<Outcome> {
    const { cases } = this.answers;
    const names = [...new Set(cases.flatMap(({ launches }) => launches.map(({ kernel }) => kernel)))];
    const kernels = new Map<string, Made>();
    const made = await Promise.all(names.map((name) => this.compile(file, name)));
    for (const [index, each] of made.entries()) kernels.set(names[index]!, each);
    const tested = testedAdapter(this.adapter, this.device.features);
    const test = new KnownAnswerTest(this.device, this.answers, tested, this.keeper);
    for (const [name, { pipeline, layout }] of kernels) {
      const problem = this.isOver ? undefined : await test.check(name, pipeline, layout);
      if (problem) return { kind: "wrong", message: problem.message };
    }
    if (!test.passed) throw new Error("the device could not run its kernels");
    if (!isTimed) return { kind: "right", microseconds: 0 };
    const timed = await this.prepareAll(cases, kernels);
    const first = await this.time(timed, FIRST_ROUNDS);
    const rounds = Math.max(
      1,
      Math.min(MOST_ROUNDS, Math.round((FIRST_ROUNDS * AIM_MICROSECONDS) / Math.max(first, 1))),
    );
    // The first submission may have waited for the device to wake up: the second one counts.
    const isEnough = this.isOver || this.budget.now() + (first * rounds) / FIRST_ROUNDS / 1000 > this.budget.end;
    const microseconds = isEnough ? first / FIRST_ROUNDS : (await this.time(timed, rounds)) / rounds;
    await new Promise((resolve) => setTimeout(resolve, 0)); // waits of a lost device end, too
    return this.isLost ? LOST : { kind: "right", microseconds };
  }

  private async compile(file: LibraryFile, name: string): Promise<Made> {
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

  /** Throws where the device has no room for the cases: what did not run would be the fastest of all. */
  private async prepareAll(cases: readonly Case[], kernels: ReadonlyMap<string, Made>): Promise<Timed[]> {
    const { device } = this;
    device.pushErrorScope("out-of-memory");
    device.pushErrorScope("validation");
    let scopes: Promise<GPUError | null>[];
    let timed: Timed[];
    try {
      timed = cases.map((item) => this.prepare(item, kernels));
    } finally {
      scopes = [device.popErrorScope(), device.popErrorScope()];
    }
    const error = (await Promise.all(scopes)).find((each) => each !== null);
    if (error) throw new Error(`it could not be timed: ${error.message}`);
    return timed;
  }

  private prepare(item: Case, kernels: ReadonlyMap<string, Made>): Timed {
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

  /** Microseconds of so many rounds of all cases: by the device's clock if it has one, else by ours. */
  private async time(timed: readonly Timed[], rounds: number): Promise<number> {
    const { device } = this;
    const clock = device.features.has("timestamp-query") ? this.clock() : undefined;
    const empty = clock ? 0 : await this.waited(() => device.queue.submit([device.createCommandEncoder().finish()]));
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass(clock && { timestampWrites: clock.writes });
    for (let round = 0; round < rounds; round++) {
      for (const { launches, times } of timed) {
        for (let again = 0; again < times; again++) {
          for (const { pipeline, group, workgroups } of launches) {
            pass.setPipeline(pipeline);
            pass.setBindGroup(0, group);
            pass.dispatchWorkgroups(...workgroups);
          }
        }
      }
    }
    pass.end();
    clock?.resolve(encoder);
    const whole = await this.waited(() => device.queue.submit([encoder.finish()]));
    // A clock that stands still says nothing.
    return (await clock?.microseconds()) || Math.max(whole - empty, 1);
  }

  private async waited(submit: () => void): Promise<number> {
    const begin = this.budget.now();
    submit();
    await this.device.queue.onSubmittedWorkDone();
    return (this.budget.now() - begin) * 1000;
  }

  private clock(): {
    writes: GPUComputePassTimestampWrites;
    resolve(encoder: GPUCommandEncoder): void;
    microseconds(): Promise<number>;
  } {
    const querySet = this.device.createQuerySet({ type: "timestamp", count: 2 });
    this.made.push(querySet);
    const resolved = this.create(16, QUERY_RESOLVE | COPY_SRC);
    const staging = this.create(16, MAP_READ | COPY_DST);
    return {
      writes: { querySet, beginningOfPassWriteIndex: 0, endOfPassWriteIndex: 1 },
      resolve: (encoder) => {
        encoder.resolveQuerySet(querySet, 0, 2, resolved, 0);
        encoder.copyBufferToBuffer(resolved, 0, staging, 0, 16);
      },
      microseconds: async () => {
        await staging.mapAsync(READ);
        const [begin, end] = new BigUint64Array(staging.getMappedRange());
        return Math.max(Number(end! - begin!) / 1000, 0);
      },
    };
  }
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
