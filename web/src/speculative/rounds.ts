// Rounds of drafts: a submission drafts tokens, runs the model on all of them and draws from each row of logits.
//
// A token is drawn by the client's sampler with the number that the client is about to draw. Row i + 1 counts only if
// what row i drew is what was drafted, so that every token is one that could have been drawn without drafts.
//
// Where a round begins the device finds out by itself (next_round.ts): several rounds are on their way, and the host
// reads of each, when it is done, where it began and what it came to. Before that it knows only how far a round may go,
// if all drafts before it come true, and asks for room for that.
//
// Where rows of per-layer embeddings come from the host, it has to know a round's tokens before the model runs on them: one
// round is on its way at a time, and its drafts are read between its two submissions. Where the client touches the state
// meanwhile, the second one is made at once, for the first of its tokens, whose row is that of the client's step.
import { BATCH_MS, type Entry, type StepScheduler, StepQueue } from "../replay/multi_step";
import type { DraftPace } from "./draft_pace";
import { MAX_ROWS, readRecord, RECORD_BYTES, type RoundRecord } from "./next_round";
import type { RoundKernels, RoundOwner } from "./round_kernels";
import { SplitRound } from "./split_round";
import { counts } from "../stats";
import { encode, type ReadyLaunch } from "../gpu/stream";
import type { RowWindow } from "../library/call";

/** Tokens that wait for the client; with more, no round begins. */
const MOST_WAITING = 8;
/** Rounds on their way: the GPU is busy while one is read. More only keep the client's next prompt waiting. */
const LEAST_ROUNDS = 2;
const MOST_ROUNDS = 4;

/** The client's sequence, and what rounds tell about it. */
export interface Sequence {
  /** Its tokens. */
  length(): number;
  /** Positions that may be written from its end on. */
  room(): number;
  wrote(length: number): void;
  /** Changes with every token, prompt, pop and abort of the client's. */
  version(): number;
  /** Time of a step without drafts; 0 if that is not known yet. */
  plainMs(): number;
  /** There can be no more rounds. */
  failed(error: unknown): void;
}

/** Hands launches to the device; why it refuses them, if it was asked that. */
type Hand = (
  launches: readonly ReadyLaunch[],
  after: (encoder: GPUCommandEncoder) => void,
) => Promise<Error | undefined> | undefined;

/** A round on its way. */
interface Round {
  readonly rows: number;
  readonly issued: number;
  readonly arrival: Promise<void>;
  record?: RoundRecord | undefined;
  /** Where it has drafts that are read before its model runs. */
  readonly halves: SplitRound | undefined;
}

export class Rounds extends StepQueue implements StepScheduler {
  /** Submitted and not read, in the order of the device. */
  private onTheirWay: Round[] = [];
  /** Where the first of these begins, or the next one; undefined if none is to follow the first. */
  private known: { position: number; token: number } | undefined;
  private goesOn = false;
  /** Of the round that was submitted last. */
  private halves: SplitRound | undefined;
  private isDestroyed = false;
  private versionOfStep = 0;
  /** Where rounds may end, by the client's step: it may run again, also after its token is asked for. */
  private end = { alone: 0, usual: 0 };
  private lastArrival = 0;
  private msPerRound = 0;
  /** Steps that came with a round because their draft did come true. */
  private readonly saved = new WeakSet<Entry>();
  private readonly staging: GPUBuffer[] = [];
  /** Numbers of drafts of rounds that the device was handed: what it refuses it refuses at once. */
  private readonly tried = new Set<number>();
  /** Of the rounds since the last start. */
  private chosen = { temperature: 0, topP: 0 };

  constructor(
    private readonly owner: RoundOwner,
    private readonly kernels: RoundKernels,
    private readonly pace: DraftPace,
    private readonly sequence: Sequence,
  ) {
    super();
  }

  start(token: number, position: number): boolean {
    this.discard();
    const { sampling } = this;
    const randomState = this.owner.library.random.state;
    if (!sampling || randomState === undefined || this.sequence.room() < 1) return false;
    this.versionOfStep = this.sequence.version();
    this.look();
    this.chosen = { ...sampling };
    this.known = { position, token };
    this.goesOn = true;
    this.lastArrival = 0;
    this.attempt(() => {
      this.kernels.begin({ ...sampling, position, token, randomState });
      this.submit(position, 0); // no drafts: it is there for the state
    });
    this.advance();
    return this.isRunning;
  }

  override get isRunning(): boolean {
    return super.isRunning || this.onTheirWay.length > 0;
  }

  override take(position: number, token: number): Entry | undefined {
    const entry = super.take(position, token);
    if (!entry) return undefined;
    if (this.saved.has(entry)) counts.guessedSteps += 1;
    this.versionOfStep = this.sequence.version();
    return entry;
  }

  refill(): void {
    this.look();
    this.advance();
  }

  override pause(): void {
    this.goesOn = false;
    this.settle();
  }

  override settle(): void {
    this.halves?.cut();
    this.halves = undefined;
  }

  override discard(): void {
    this.settle();
    super.discard();
    this.onTheirWay = [];
    this.known = undefined;
    this.goesOn = false;
  }

  /** Some of its buffers may be gone by now. */
  destroy(): void {
    this.halves?.giveUp();
    this.discard();
    this.isDestroyed = true;
    for (const buffer of this.staging) buffer.destroy();
    this.staging.length = 0;
    this.kernels.destroy();
  }

  // --- Submitting ---

  /** Begins the next rounds, as far as there is room for them. */
  private advance(): void {
    while (this.goesOn && this.onTheirWay.length < this.depth && this.entries.length <= MOST_WAITING) {
      const { pace, onTheirWay } = this;
      const begin = onTheirWay.reduce((position, { rows }) => position + rows, this.known!.position);
      const isAlone = onTheirWay.length === 0;
      const end = isAlone ? this.end.alone : this.end.usual;
      const drafts = Math.min(pace.count, MAX_ROWS - 1);
      const fitting = Math.min(drafts, end - begin - 1);
      if (fitting < (isAlone ? 0 : drafts)) return;
      this.attempt(() => this.submit(begin, fitting));
    }
  }

  /** Finds the room, where the client begins with a step. */
  private look(): void {
    const [length, room] = [this.sequence.length(), this.sequence.room()];
    // A third of it stays for what the client may take back, but where nothing would go on without it.
    this.end = { alone: length + room, usual: length + Math.floor((2 * room) / 3) };
  }

  /** As many rounds as keep the GPU busy, but no more text at a time than steps without drafts bring. */
  private get depth(): number {
    if (this.kernels.window) return 1;
    if (this.msPerRound === 0) return LEAST_ROUNDS;
    return Math.max(LEAST_ROUNDS, Math.min(MOST_ROUNDS, Math.floor(BATCH_MS / this.msPerRound)));
  }

  private attempt(action: () => void): void {
    try {
      action();
    } catch (error) {
      this.goesOn = false;
      this.fail(error);
    }
  }

  /** A round of so many drafts, which begins at `begin` if all drafts before it come true. */
  private submit(begin: number, drafts: number): void {
    const { kernels, owner, onTheirWay } = this;
    const { native, stream } = owner.device;
    const rows = drafts + 1;
    const drafting = kernels.draft(drafts);
    const forward = kernels.run(rows);
    kernels.table.fill(this.known!.position, begin + rows + MAX_ROWS);
    this.sequence.wrote(begin + rows);
    const staging = this.staging.pop() ?? this.makeStaging();
    const isNew = !this.tried.has(drafts);
    this.tried.add(drafts);
    const hand = (launches: readonly ReadyLaunch[], after?: (encoder: GPUCommandEncoder) => void) => {
      const submit = () => stream.submit([encode(native, launches, after)]);
      if (isNew) return this.errorOf(submit);
      submit();
      return undefined;
    };
    // The model on all tokens; ends when its record can be read.
    const finish = (): Promise<void> => {
      const refused = hand(forward, (encoder) => kernels.copyRecord(encoder, staging));
      const mapped = staging.mapAsync(GPUMapMode.READ);
      mapped.catch(() => undefined); // heard of through `arrival`, where that is still waited for
      const isRight = async (error: Error | undefined) => {
        if (!error) return mapped;
        staging.destroy();
        throw this.fail(error);
      };
      return refused?.then(isRight) ?? mapped;
    };
    // The GPU begins with the drafts while the others are encoded. Without them none comes true.
    if (drafts > 0 && !kernels.window) void hand(drafting)?.then((error) => error && this.fail(error));
    const halves = kernels.window && this.split(kernels.window, finish);
    this.halves = halves;
    const read = async () => (drafts > 0 ? this.readDrafts(drafting, drafts, hand) : []);
    if (drafts === 0) halves?.cut(); // at once, and nothing is missing
    const finished = halves ? halves.after(read()) : finish();
    counts.draftRounds += 1;
    counts.draftedTokens += drafts;
    if (onTheirWay.length > 0) counts.overlappedRounds += 1;
    const round: Round = {
      rows,
      issued: performance.now(),
      halves: drafts > 0 ? halves : undefined,
      arrival: finished.then(() => this.read(round, staging)),
    };
    // Who waits for the token hears of a failure; nobody may be waiting.
    round.arrival.catch(() => undefined);
    onTheirWay.push(round);
    if (onTheirWay.length === 1) this.expect(round);
  }

  /** A round whose model waits for its drafts, the rows of which it brings. */
  private split(window: RowWindow, finish: () => Promise<void>): SplitRound {
    const { token } = this.known!; // of the only round on its way
    return new SplitRound(async (drafted) => {
      let finished: Promise<void>;
      try {
        window.write([token, ...drafted]);
        finished = finish();
      } catch (error) {
        throw this.fail(error);
      }
      return finished;
    });
  }

  /** The drafts of a round, which the device is asked for. */
  private async readDrafts(drafting: readonly ReadyLaunch[], drafts: number, hand: Hand): Promise<number[]> {
    const { kernels, owner } = this;
    const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
    const staging = owner.device.native.createBuffer({ size: kernels.draftBytes, usage });
    try {
      let refused: Promise<Error | undefined> | undefined;
      try {
        refused = hand(drafting, (encoder) => kernels.copyDrafts(encoder, staging));
      } catch (error) {
        throw this.fail(error);
      }
      const [error] = await Promise.all([refused, staging.mapAsync(GPUMapMode.READ)]);
      if (error) throw this.fail(error);
      return kernels.readDrafts(staging.getMappedRange().slice(0), drafts);
    } finally {
      staging.destroy();
    }
  }

  /** Why the device refuses the commands that `action` hands to it, if it does. */
  private errorOf(action: () => void): Promise<Error | undefined> {
    const { native, stream } = this.owner.device;
    stream.flush(); // what the client asked for before is not ours to answer for
    native.pushErrorScope("validation");
    let scope: Promise<GPUError | null>;
    try {
      action();
    } finally {
      scope = native.popErrorScope();
    }
    return scope.then(
      (found) => (found ? new Error(`the device refuses a round: ${found.message}`) : undefined),
      () => undefined, // it is lost, which who waits for a token hears anyway
    );
  }

  private fail<T>(error: T): T {
    if (!this.isDestroyed) this.sequence.failed(error);
    return error;
  }

  // --- Reading ---

  /** The first token of a round, of which everything is known before it is read but the token itself. */
  private expect(round: Round): void {
    const { position, token } = this.known!;
    this.entries.push({
      ...this.step(position, token),
      read: {
        value: () => round.record?.drawn[0] as number,
        get arrival() {
          return round.record ? Promise.resolve() : round.arrival;
        },
      },
    });
  }

  private step(position: number, token: number) {
    const uniform = this.kernels.table.uniformAt(position);
    return { ...this.chosen, position, uniform, input: () => token };
  }

  private read(round: Round, staging: GPUBuffer): void {
    const record = readRecord(new Int32Array(staging.getMappedRange().slice(0)));
    staging.unmap();
    if (this.isDestroyed) staging.destroy();
    else this.staging.push(staging);
    round.record = record;
    // They run in their order, but nobody says that they are read in it.
    for (let first = this.onTheirWay[0]; first?.record; first = this.onTheirWay[0]) this.arrived(first, first.record);
  }

  /** Throws, so that who waits for the token hears of it, where the device did not do what it was asked for. */
  private check(round: Round, { position, rows, accepted, drafts, drawn }: RoundRecord): void {
    let right = 0;
    while (right < drafts.length && drafts[right] === drawn[right]) right += 1;
    if (position === this.known!.position && rows === round.rows && accepted === right) return;
    round.record = undefined;
    throw this.fail(new Error("the device lost count of its rounds"));
  }

  /** The tokens that were drafted are the client's next ones as far as they came true. */
  private arrived(round: Round, record: RoundRecord): void {
    const { sequence, pace } = this;
    const { position, accepted, drafts, drawn } = record;
    const isCut = round.halves?.isCut ?? false;
    if (!isCut) {
      this.check(round, record);
      counts.acceptedTokens += accepted;
    }
    this.onTheirWay.shift();
    if (isCut) {
      this.known = undefined; // what the device goes on from is another token
      this.goesOn = false;
      return;
    }
    if (sequence.version() !== this.versionOfStep) {
      // The client went on with something else: another round would overwrite the keys and values of its prompt.
      this.discard();
      return;
    }
    const isAwaited = this.entries.length === 0;
    for (let row = 1; row <= accepted; row++) {
      const entry = {
        ...this.step(position + row, drawn[row - 1]!),
        read: { value: () => drawn[row]!, arrival: Promise.resolve() },
      };
      this.saved.add(entry);
      this.entries.push(entry);
    }
    this.known = { position: position + accepted + 1, token: drawn[accepted]! };
    if (this.onTheirWay[0]) this.expect(this.onTheirWay[0]);
    const plainMs = sequence.plainMs();
    this.measure(round.issued, (ms) => pace.noteRound(drafts.length, accepted, ms, plainMs));
    this.goesOn &&= pace.wantsRounds(plainMs);
    // Who has not asked for this round's first token has stopped, or goes on with `refill`.
    if (isAwaited) this.advance();
  }

  /** A round's time: since the one before it was read, for they lie one after another on the device. */
  private measure(issued: number, note: (ms: number) => void): void {
    const now = performance.now();
    const ms = now - Math.max(issued, this.lastArrival);
    this.lastArrival = now;
    this.msPerRound = this.msPerRound === 0 ? ms : 0.75 * this.msPerRound + 0.25 * ms;
    note(ms);
  }

  private makeStaging(): GPUBuffer {
    return this.owner.device.native.createBuffer({
      size: RECORD_BYTES,
      usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST,
    });
  }
}
