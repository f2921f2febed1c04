// Libraries of a package against each other on one device, in the time that a choice may take.
import type { LibraryFile } from "./library_file";
import { prepare, type Adapter, type Budget, type Failure, type Ready } from "./measure";
import type { WebLibrary } from "./provenance";

/** Times of a library beyond the first one, which may have waited for the device to wake up. */
const MOST_SAMPLES = 5;
/** Left for the other kernels of the one that wins. */
const RESERVE_MS = 80;
/** Medians so close say nothing of which is faster: the one that was expected to be is taken. */
const TIE = 1.05;

export interface Entrant {
  library: WebLibrary;
  /** Undefined: it did not come. */
  file: LibraryFile | undefined;
}

interface Entry {
  library: WebLibrary;
  ready?: Ready;
  failure?: Failure;
  first: number;
  samples: number[];
}

export interface Standing {
  library: WebLibrary;
  microseconds: number;
}

export class Contest {
  private readonly entries: Entry[] = [];
  private last: Promise<unknown> = Promise.resolve();

  /** `width`: how many libraries' kernels are made at a time. */
  constructor(
    private readonly device: GPUDevice,
    private readonly adapter: Adapter,
    private readonly budget: Budget,
    private readonly width: number,
  ) {}

  /** Whether nothing more can be found out: time is up, or the device is gone. */
  get isOver(): boolean {
    return this.entries.some(({ failure }) => failure?.kind === "lost") || this.budget.now() >= this.budget.end;
  }

  /** Makes, checks and times libraries once, those in front first. */
  async enter(entrants: readonly Entrant[]): Promise<void> {
    const waiting = [...entrants];
    const work = async () => {
      while (waiting.length > 0 && !this.isOver) await this.take(waiting.shift()!);
    };
    await Promise.all(Array.from({ length: this.width }, work));
  }

  /** Times those that are right again and again, in turn: a device gets faster and slower while it works. */
  async compare(): Promise<void> {
    for (let round = 0; round < MOST_SAMPLES; round++) {
      const right = this.right();
      if (right.length < 2) return;
      for (const entry of right) {
        if (this.isOver || this.budget.now() > this.budget.end - RESERVE_MS) return;
        const found = await entry.ready!.sample();
        if (typeof found === "number") entry.samples.push(found);
        else if (found.kind !== "late") entry.failure = found;
      }
    }
  }

  /** The libraries that are right, the fastest first; of equally fast ones the one that entered first. */
  standings(): Standing[] {
    const right = this.right();
    // As many of each: later ones are those of a device that has woken up.
    const count = Math.min(...right.map(({ samples }) => samples.length));
    const timed = right.map(({ library, first, samples }) => ({
      library,
      microseconds: count > 0 ? median(samples.slice(0, count)) : first,
    }));
    const fastest = Math.min(...timed.map(({ microseconds }) => microseconds));
    const equal = timed.filter(({ microseconds }) => microseconds <= TIE * fastest);
    const slower = timed.filter((each) => !equal.includes(each)).sort((a, b) => a.microseconds - b.microseconds);
    return [...equal, ...slower];
  }

  /** What became of each that was begun and cannot be taken for right. */
  failures(): { library: WebLibrary; failure: Failure }[] {
    return this.entries.flatMap(({ library, failure }) => (failure ? [{ library, failure }] : []));
  }

  end(): void {
    for (const { ready } of this.entries) ready?.end();
  }

  private right(): Entry[] {
    return this.entries.filter(({ failure, first }) => !failure && first > 0);
  }

  private async take({ library, file }: Entrant): Promise<void> {
    const entry: Entry = { library, first: 0, samples: [] };
    this.entries.push(entry);
    if (!file) {
      entry.failure = { kind: "unknown", message: "its file did not come" };
      return;
    }
    const inTurn = <T>(action: () => Promise<T>) => this.inTurn(action);
    const made = await prepare(this.device, file, this.adapter, this.budget, inTurn).catch(
      (error: unknown): Failure => ({ kind: "unknown", message: String(error) }),
    );
    const found = made.kind === "right" ? await this.inTurn(() => made.sample()) : made;
    if (made.kind === "right") entry.ready = made;
    if (typeof found === "number") entry.first = found;
    else entry.failure = found;
  }

  private inTurn<T>(action: () => Promise<T>): Promise<T> {
    const result = this.last.then(action);
    this.last = result.catch(() => undefined);
    return result;
  }
}

function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)]!;
}
