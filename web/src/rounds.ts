// Rounds of guesses: one submission guesses tokens, runs the model on all of them and draws from each row of logits.
//
// A token is drawn by the client's sampler with the number that the client is about to draw. Row i + 1 counts only if
// what row i drew is what was guessed, so that every token is one that could have been drawn without guesses. The next
// round begins when the tokens of one are on the host.
import { bits, type Entry, type Forerunner, Waiting } from "./ahead";
import type { DraftPace } from "./draft_pace";
import { nextState, uniformOf } from "./random";
import { MAX_ROWS, type RoundKernels, type RoundOwner } from "./round_kernels";
import { counts } from "./stats";
import { encode } from "./stream";

/** Tokens that wait for the client; with more, no round begins. */
const MOST_WAITING = 8;

/** Where the next round begins. */
interface Start {
  readonly position: number;
  readonly token: number;
  readonly randomState: number;
  /** Of the states of the round before, the last token's; -1 if there is none. */
  readonly row: number;
}

/** The client's sequence, and what rounds tell about it. */
export interface Sequence {
  /** Positions that may be written from its end on. */
  room(): number;
  wrote(length: number): void;
  /** Changes with every token, prompt, pop and abort of the client's. */
  version(): number;
  /** Time of a step without guesses; 0 if that is not known yet. */
  plainMs(): number;
  /** There can be no more rounds. */
  failed(error: unknown): void;
}

interface Round {
  readonly start: Start;
  readonly entries: readonly Entry[];
  readonly uniformStates: readonly number[];
  readonly result: { drawn?: readonly number[] };
  readonly issued: number;
}

export class Rounds extends Waiting implements Forerunner {
  private next: Start | undefined;
  private onItsWay: Round | undefined;
  private isDestroyed = false;
  private versionOfStep = 0;
  /** Steps that came with a round because their guess did come true. */
  private readonly saved = new WeakSet<Entry>();
  private readonly staging: GPUBuffer[] = [];

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
    const randomState = this.owner.library.random.state;
    if (!this.sampling || randomState === undefined || this.sequence.room() < 1) return false;
    this.versionOfStep = this.sequence.version();
    this.next = { position, token, randomState, row: -1 };
    this.advance(position);
    return this.isRunning;
  }

  override take(position: number, token: number): Entry | undefined {
    const entry = super.take(position, token);
    if (entry && this.saved.has(entry)) counts.guessedSteps += 1;
    return entry;
  }

  refill(position: number): void {
    this.versionOfStep = this.sequence.version();
    this.advance(position + 1);
  }

  override discard(): void {
    super.discard();
    this.next = this.onItsWay = undefined;
  }

  destroy(): void {
    this.discard();
    this.isDestroyed = true;
    for (const buffer of this.staging) buffer.destroy();
    this.staging.length = 0;
    this.kernels.destroy();
  }

  /** Begins the next round if there is room for it; the client's sequence ends before `length`, or at it. */
  private advance(length: number): void {
    const { next, pace } = this;
    if (!next || this.onItsWay || this.entries.length > MOST_WAITING) return;
    const room = this.sequence.room() - (next.position - length) - 1;
    if (room < 1) return;
    const guesses = next.row < 0 ? 0 : Math.min(pace.count, room - 1, MAX_ROWS - 1);
    this.next = undefined;
    try {
      this.submit(next, guesses);
    } catch (error) {
      this.sequence.failed(error);
    }
  }

  private submit(start: Start, guesses: number): void {
    const { kernels, owner } = this;
    const { native, stream } = owner.device;
    const rows = guesses + 1;
    const drafts = Array.from({ length: guesses }, (_, j) => kernels.guess(j)).flat();
    const forward = kernels.run(rows);
    const round = this.prepare(start, rows);
    stream.flush();
    kernels.write({
      ...this.sampling!,
      position: start.position,
      token: start.token,
      uniforms: round.uniformStates.map((state) => bits(uniformOf(state))),
    });
    this.sequence.wrote(start.position + rows);
    const staging = this.staging.pop() ?? this.makeStaging();
    const commands: GPUCommandBuffer[] = [];
    if (guesses > 0) {
      const first = native.createCommandEncoder();
      first.copyBufferToBuffer(
        kernels.states,
        start.row * kernels.stateBytes,
        kernels.hidden[0]!,
        0,
        kernels.stateBytes,
      );
      commands.push(first.finish());
      const gather = (encoder: GPUCommandEncoder) => {
        for (let j = 1; j < rows; j++) encoder.copyBufferToBuffer(kernels.tokens[j]!, 0, kernels.ids, 4 * j, 4);
      };
      commands.push(encode(native, drafts, gather));
    }
    commands.push(
      encode(native, forward, (encoder) => {
        encoder.copyBufferToBuffer(kernels.drawn, 0, staging, 0, kernels.drawn.size);
        encoder.copyBufferToBuffer(kernels.ids, 0, staging, kernels.drawn.size, kernels.ids.size);
      }),
    );
    stream.submit(commands);
    counts.draftRounds += 1;
    counts.draftedTokens += guesses;
    this.onItsWay = round;
    this.listen(round, staging, rows);
  }

  /** Entries of all rows, of which those count whose guess came true. */
  private prepare(start: Start, rows: number): Round {
    const { temperature, topP } = this.sampling!;
    const uniformStates: number[] = [];
    const entries: Entry[] = [];
    const result: { drawn?: readonly number[] } = {};
    let state = start.randomState;
    for (let row = 0; row < rows; row++) {
      state = nextState(state);
      uniformStates.push(state);
      entries.push({
        position: start.position + row,
        temperature,
        topP,
        uniform: bits(uniformOf(state)),
        input: () => (row === 0 ? start.token : result.drawn?.[row - 1]),
        read: { value: () => result.drawn?.[row] as number, arrival: Promise.resolve() },
      });
    }
    return { start, entries, uniformStates, result, issued: performance.now() };
  }

  private listen(round: Round, staging: GPUBuffer, rows: number): void {
    const arrival = staging.mapAsync(GPUMapMode.READ).then(() => {
      const values = new Int32Array(staging.getMappedRange().slice(0));
      staging.unmap();
      if (this.isDestroyed) staging.destroy();
      else this.staging.push(staging);
      const { stride, drawn } = this.kernels;
      const drawnTokens = Array.from({ length: rows }, (_, row) => values[(row * stride) / 4]!);
      const guesses = [...values.subarray(drawn.size / 4 + 1, drawn.size / 4 + rows)];
      round.result.drawn = drawnTokens;
      if (this.onItsWay === round) this.arrived(round, drawnTokens, guesses);
    });
    // Who waits for the token hears of a failure; nobody may be waiting.
    arrival.catch(() => undefined);
    const first = round.entries[0]!;
    const read = {
      value: first.read.value,
      get arrival() {
        return round.result.drawn ? Promise.resolve() : arrival;
      },
    };
    this.entries.push({ ...first, read });
  }

  /** The tokens that were guessed are the client's next ones as far as they came true. */
  private arrived({ start, entries, uniformStates, issued }: Round, drawn: number[], guesses: number[]): void {
    let accepted = 0;
    while (accepted < guesses.length && guesses[accepted] === drawn[accepted]) accepted += 1;
    counts.acceptedTokens += accepted;
    this.onItsWay = undefined;
    if (this.sequence.version() !== this.versionOfStep) {
      // The client went on with something else: another round would overwrite the keys and values of its prompt.
      this.discard();
      return;
    }
    for (const entry of entries.slice(1, accepted + 1)) {
      this.saved.add(entry);
      this.entries.push(entry);
    }
    const plainMs = this.sequence.plainMs();
    this.pace.noteRound(guesses.length, accepted, performance.now() - issued, plainMs);
    this.next = {
      position: start.position + accepted + 1,
      token: drawn[accepted]!,
      randomState: uniformStates[accepted]!,
      row: accepted,
    };
    if (this.pace.wantsRounds(plainMs)) this.advance(this.entries[0]?.position ?? this.next.position);
    else this.next = undefined;
  }

  private makeStaging(): GPUBuffer {
    const { drawn, ids } = this.kernels;
    return this.owner.device.native.createBuffer({
      size: drawn.size + ids.size,
      usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST,
    });
  }
}
