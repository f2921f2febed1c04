// Steps that run before the client asks for them: several in one submission, each drawing the token of the next.
import type { HostRead } from "../gpu/buffers";
import type { Device } from "../gpu/device";
import type { RandomNumbers } from "../library/random";
import { nextState, uniformOf } from "../library/random";
import type { ReadyLaunch } from "../gpu/stream";
import { encode } from "../gpu/stream";
import { counts, noteStepMs } from "../stats";
import { SLOTS, type StepInputs, type Tables } from "./tables";

/** Time of a token, times the tokens of a submission: so much text comes at a time at most. */
export const BATCH_MS = 40;
const FIRST_BATCH = 2;
/** Steps of a command buffer: the GPU begins with them while the browser still takes in those after them. */
const STEPS_OF_COMMANDS = 4;

/** A step on its way. */
export interface Entry extends StepInputs {
  readonly read: HostRead;
  /** The token that the step reads; undefined as long as the step before has not drawn it. */
  input(): number | undefined;
}

/** Runs steps before the client asks for them. */
export interface StepScheduler {
  readonly isRunning: boolean;
  /** The client's sampling, as it last was. */
  sampling: Sampling | undefined;
  /** The step at `position`, if it ran or runs with this token. */
  take(position: number, token: number): Entry | undefined;
  /** Begins with a step whose token the client has. */
  start(token: number, position: number): boolean;
  /** Keeps the GPU busy after the step that the client takes now. */
  refill(position: number): void;
  /** Until the next start nothing is submitted but what the client asks for. */
  pause(): void;
  /** Nothing of what is on its way waits any more to be handed to the device: the client's own commands go on with the state. */
  settle(): void;
  /** Forgets the steps that the client did not ask for; their keys and values are after its sequence. */
  discard(): void;
  destroy(): void;
}

/** Numbers as they lie in memory. */
export interface Sampling {
  readonly temperature: number;
  readonly topP: number;
}

export const bits = (value: number): number => new Int32Array(Float32Array.of(value).buffer)[0]!;

/** Steps that the client has not asked for yet, the next one first. */
export class StepQueue {
  sampling: Sampling | undefined;
  protected entries: Entry[] = [];

  get isRunning(): boolean {
    return this.entries.length > 0;
  }

  take(position: number, token: number): Entry | undefined {
    const [first] = this.entries;
    if (!first || first.position !== position || first.input() !== token) return undefined;
    this.entries.shift();
    return first;
  }

  pause(): void {
    // Where nothing is submitted by itself.
  }

  settle(): void {
    // As above.
  }

  discard(): void {
    counts.discardedSteps += this.entries.length;
    this.entries = [];
  }
}

export class MultiStep extends StepQueue implements StepScheduler {
  private slot = 0;
  private batchSize = FIRST_BATCH;
  private randomState = 0;
  private lastArrival = 0;
  /** Of a step, once two submissions came back. */
  msPerToken = 0;
  private measurements = 0;
  private staging: GPUBuffer[] = [];
  private isDestroyed = false;

  constructor(
    private readonly device: Device,
    private readonly tables: Tables,
    private readonly launches: readonly (readonly ReadyLaunch[])[],
    private readonly random: RandomNumbers,
    /** Steps that may be on their way from a position on; given how far they go. */
    private readonly room: () => number,
    private readonly wrote: (length: number) => void,
  ) {
    super();
  }

  start(token: number, position: number): boolean {
    this.discard();
    if (!this.sampling || this.random.state === undefined || this.room() < FIRST_BATCH) return false;
    this.randomState = this.random.state;
    this.batchSize = FIRST_BATCH;
    this.lastArrival = 0;
    this.tables.writeToken(this.slot, token);
    this.submit(position, FIRST_BATCH, () => token);
    return true;
  }

  refill(position: number): void {
    while (this.entries.length < this.leastAhead()) {
      const last = this.entries.at(-1);
      const next = last ? last.position + 1 : position + 1;
      const size = Math.min(this.batchSize, this.room() - (next - position));
      if (size <= 0 || !last) return;
      this.submit(next, size, () => last.read.value());
      this.batchSize = Math.min(this.batchSize * 2, this.largestBatch());
    }
  }

  destroy(): void {
    this.discard();
    this.isDestroyed = true;
    for (const buffer of this.staging) buffer.destroy();
    this.staging = [];
  }

  private largestBatch(): number {
    return this.msPerToken === 0 ? SLOTS : Math.max(1, Math.min(SLOTS, Math.floor(BATCH_MS / this.msPerToken)));
  }

  /**
   * Steps that the device has at least when the client asks for one. The tokens of a submission come when it has ended; the
   * one after the next is on its way then, if both have no more text than `BATCH_MS`: a browser takes as long to take
   * steps in as a fast GPU to compute them, and the GPU waited for it.
   */
  private leastAhead(): number {
    const { batchSize, msPerToken } = this;
    return Math.max(batchSize, Math.min(2 * batchSize, Math.floor(BATCH_MS / (msPerToken || BATCH_MS))));
  }

  private submit(first: number, size: number, input: () => number | undefined): void {
    const { device, tables, slot } = this;
    const { native, stream } = device;
    const { temperature, topP } = this.sampling!;
    const tokens: { values?: Int32Array } = {};
    const staging =
      this.staging.pop() ??
      native.createBuffer({
        size: tables.tokens.size,
        usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST,
      });
    let resolved = false;
    let arrival: Promise<void> | undefined;
    const entries: Entry[] = [];
    const parts: ReadyLaunch[][] = [];
    for (let k = 0; k < size; k++) {
      this.randomState = nextState(this.randomState);
      const entry = (slot + k + 1) % SLOTS;
      const before = entries.at(-1);
      entries.push({
        position: first + k,
        temperature,
        topP,
        uniform: bits(uniformOf(this.randomState)),
        input: before ? () => before.read.value() : input,
        read: {
          value: () => tokens.values?.[(entry * tables.tokenStride) / 4] as number,
          get arrival() {
            return resolved ? Promise.resolve() : arrival!;
          },
        },
      });
      if (k % STEPS_OF_COMMANDS === 0) parts.push([]);
      for (const launch of this.launches[(slot + k) % SLOTS]!) parts.at(-1)!.push(launch);
    }
    this.slot = (slot + size) % SLOTS;
    stream.flush();
    tables.writeRows(slot, entries);
    this.wrote(first + size);
    const last = parts.pop()!;
    for (const part of parts) stream.submit([encode(native, part)]);
    stream.submit([
      encode(native, last, (encoder) => encoder.copyBufferToBuffer(tables.tokens, 0, staging, 0, tables.tokens.size)),
    ]);
    counts.batches += 1;
    this.entries.push(...entries);
    arrival = staging.mapAsync(GPUMapMode.READ).then(() => {
      tokens.values = new Int32Array(staging.getMappedRange().slice(0));
      staging.unmap();
      resolved = true;
      if (this.isDestroyed) staging.destroy();
      else this.staging.push(staging);
      this.measure(size);
    });
    // Who waits for the tokens hears of a failure; nobody may be waiting. Nothing else would end the buffer.
    arrival.catch(() => staging.destroy());
  }

  private measure(size: number): void {
    const now = performance.now();
    if (this.lastArrival > 0) {
      const ms = (now - this.lastArrival) / size;
      // A hiccup does not spoil the mean.
      this.msPerToken = this.msPerToken === 0 ? ms : 0.75 * this.msPerToken + 0.25 * Math.min(ms, 3 * this.msPerToken);
      this.batchSize = Math.min(this.batchSize, this.largestBatch());
      noteStepMs(this.msPerToken, ++this.measurements);
    }
    this.lastArrival = now;
  }
}
