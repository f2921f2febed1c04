// Where the time of a prompt and of a decoded token goes on this device, by kernel.
//
// Launches share passes, and a timestamp is of a whole pass. So the client answers a question three times: once to make
// ready what is made late, once for the time of its steps as they are in a chat, and once while the launches of a step are
// noted. The client then waits for that step somewhat longer: meanwhile the launches of each kernel are issued again and
// again, in a pass of their own, and at last the whole step once more, so that its results are those of the step.
import { Calls } from "../library/calls";
import type { Call, CallObserver, Library, Stage } from "../library/library";
import type { Device, WaitObserver } from "../gpu/device";
import { hasClock, PassClock } from "../gpu/pass_clock";
import { encode, type Launch } from "../gpu/stream";
import { operatorsOf, timeKernels } from "./kernel_times";
import type { KernelTime, Profile, StepProfile } from "./times";

/** Of the reply that is looked at: the first token's step may be the first one of its kind. */
const DECODED_BEFORE = 2;
const TOO_SHORT = "the reply was too short to profile: let it have eight tokens or more, and let nothing interrupt it";

let isRunning = false;

/** The profile of the library that the client's reply calls. Throws where there is none that the module drives. */
export async function profileReply(libraries: readonly Library[], reply: () => Promise<unknown>): Promise<Profile> {
  const driven = libraries.filter((library) => library.isDriven);
  if (driven.length === 0) throw new Error("no model is loaded that gemma4-web knows: see stats().reasons");
  if (isRunning) throw new Error("a profile is being made");
  isRunning = true;
  const observe = async <T extends CallObserver>(make: (library: Library) => T): Promise<T[]> => {
    const observers = driven.map((library) => {
      const observer = make(library);
      library.observer = observer;
      return observer;
    });
    try {
      await reply();
    } finally {
      for (const library of driven) library.observer = undefined;
    }
    return observers;
  };
  try {
    await reply();
    const walls = (await observe((library) => new Walls(library))).find(({ isWhole }) => isWhole);
    const profiler = new Profiler();
    await observe((library) => profiler.of(library)).finally(() => profiler.end());
    if (!walls) throw new Error(TOO_SHORT);
    return profiler.result(walls);
  } finally {
    isRunning = false;
  }
}

/** The times of a reply's steps as they are. */
class Walls implements CallObserver {
  tokens = 0;
  private prompted = 0;
  private readonly decoded: number[] = [];

  constructor(private readonly library: Library) {}

  get isWhole(): boolean {
    return this.prompted > 0 && this.decoded.length > DECODED_BEFORE;
  }

  get prefill(): number {
    return 1000 * (this.decoded[0]! - this.prompted);
  }

  get decode(): number {
    const { decoded } = this;
    return (1000 * (decoded.at(-1)! - decoded[0]!)) / (decoded.length - 1);
  }

  called(stage: Stage, call: Call): undefined {
    if (stage === "prefill") {
      this.prompted = performance.now(); // of a prompt in several chunks the last one
      // Of ids, or of their embeddings: one sequence.
      this.tokens = Calls.of(this.library).sizes(this.library.value(call.args).handle)[1]!;
      this.decoded.length = 0;
    } else if (stage === "decode") this.decoded.push(performance.now());
  }
}

/** Notes the launches of a prompt and of a token, and times them while the client waits for what they compute. */
class Profiler implements WaitObserver {
  private readonly found = new Map<StepProfile["step"], KernelTime[]>();
  private library: Library | undefined;
  private device: Device | undefined;
  private clock: PassClock | undefined;
  /** The step whose launches are noted or wait to be timed. */
  private step: StepProfile["step"] | undefined;
  private launches: Launch[] = [];
  private decoded = 0;
  private readonly kept: (() => void)[] = [];

  of(library: Library): CallObserver {
    library.finishDrivers();
    return { called: (stage, call) => this.called(library, stage, call) };
  }

  private called(library: Library, stage: Stage, call: Call): number | undefined {
    if (this.library && this.library !== library) return undefined;
    if (!this.library) this.begin(library);
    if (stage === "decode") this.decoded += 1;
    if (stage === "prefill" || stage === "decode") {
      this.launches = [];
      this.step = stage;
    }
    const isWanted = this.step === "prefill" ? stage === "prefill" : this.decoded > DECODED_BEFORE;
    const recording = { launches: [] as Launch[], isClean: true };
    this.device!.recording = recording;
    const status = library.run(call.handle, call.args, call.count, call.result); // as it is: nothing runs ahead
    this.device!.recording = undefined;
    if (isWanted && !this.found.has(this.step!)) this.launches.push(...recording.launches);
    return status;
  }

  private begin(library: Library): void {
    const device = library.device!;
    this.library = library;
    this.device = device;
    this.clock = new PassClock(device.native, hasClock(device.device), () => performance.now());
    device.observer = this;
  }

  /** A prompt is computed when the queue is done, a token when it is read: its sampling comes after the first. */
  async waited<T>(wait: Promise<T>, isRead: boolean): Promise<T> {
    const { step, launches } = this;
    if (!step || launches.length === 0 || (step === "decode" && !isRead)) return wait;
    this.launches = [];
    const result = await wait;
    await this.time(step, launches);
    return result;
  }

  keep(destroy: () => void): void {
    this.kept.push(destroy);
  }

  private async time(step: StepProfile["step"], launches: readonly Launch[]): Promise<void> {
    const { library, device, clock } = this;
    const operators = operatorsOf(library!.readMetadata());
    device!.stream.flush();
    const times = await timeKernels(clock!, launches, (pipeline) => device!.kernelNames.get(pipeline), operators);
    this.found.set(step, times);
    const again = launches.map(({ pipeline, group, x, y, z }) => ({ pipeline, group: group.group, x, y, z }));
    device!.native.submit([encode(device!.native, again)]);
    await device!.native.onSubmittedWorkDone();
    for (const destroy of this.kept.splice(0)) destroy();
  }

  end(): void {
    if (this.device) this.device.observer = undefined;
    for (const destroy of this.kept.splice(0)) destroy();
    this.clock?.destroy();
  }

  result(walls: Walls): Profile {
    const [prefill, decode] = [this.found.get("prefill"), this.found.get("decode")];
    if (!prefill || !decode) throw new Error(TOO_SHORT);
    const { vendor, architecture, description } = this.device!.adapter;
    return {
      clock: hasClock(this.device!.device) ? "device" : "browser",
      device: { vendor, architecture, description },
      steps: [
        { step: "prefill", tokens: walls.tokens, wallMicroseconds: walls.prefill, kernels: prefill },
        { step: "decode", tokens: 1, wallMicroseconds: walls.decode, kernels: decode },
      ],
    };
  }
}
