// Rounds on their way while a client does this and that: orders of events at random.
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { bits } from "../../src/replay/multi_step";
import { DraftPace } from "../../src/speculative/draft_pace";
import { nextState, uniformOf } from "../../src/library/random";
import type { RoundKernels, RoundOwner } from "../../src/speculative/round_kernels";
import { Rounds } from "../../src/speculative/rounds";
import { counts } from "../../src/stats";
import { fakeNative } from "../fake_device";
import { device, FakeRoundKernels } from "../fake_rounds";

const CAPACITY = 600;
const WINDOW = 12; // positions that a token sees, itself included
const ROOM = 40; // positions that the ring lets run ahead
const ROWS = WINDOW + ROOM - 1;
const EVENTS = 250;

const settled = () => new Promise<void>((done) => setTimeout(done, 0));

/** Numbers from 0 to 1, the same for a seed. */
function numbers(seed: number): () => number {
  let state = (seed + 1) * 7919;
  return () => {
    state = nextState(state);
    return state / 2147483647;
  };
}

/** A client and its device: keys and values by position, and what the client has said so far. */
class World {
  readonly history: number[] = [];
  /** A ring: position p is in row p % ROWS. */
  private readonly kv: number[] = [];
  private written = 0; // of the state: positions that were ever written, or may be
  private readonly pending: (() => void)[] = [];
  private readonly random = { state: 77 };
  private readonly rounds: Rounds;
  private version = 1;
  private length = 0;
  private temperature = 1;
  private token = 5;
  failures = 0;
  /** Steps whose token came from a round. */
  given = 0;
  begun = 0;

  constructor(
    private readonly chance: () => number,
    drafts: number | undefined,
  ) {
    device.write = (position, token) => {
      this.write(position, token);
    };
    const native = { ...fakeNative().native, createBuffer: () => this.staging() };
    const stream = { flush: () => undefined, submit: () => undefined };
    const owner = { library: { random: this.random }, device: { native, stream } } as unknown as RoundOwner;
    const kernels = new FakeRoundKernels() as unknown as RoundKernels;
    this.rounds = new Rounds(owner, kernels, new DraftPace(8, drafts), {
      length: () => this.length,
      room: () => Math.min(ROOM, CAPACITY - this.length),
      wrote: (end) => {
        expect(end).toBeLessThanOrEqual(this.length + Math.min(ROOM, CAPACITY - this.length));
        this.written = Math.max(this.written, end);
      },
      version: () => this.version,
      plainMs: () => 10,
      failed: () => {
        this.failures += 1;
      },
    });
    this.rounds.sampling = { temperature: this.temperature, topP: 1 };
    this.prompt();
  }

  private staging(): GPUBuffer {
    const made = {
      content: new Int32Array(0),
      ms: 0,
      mapAsync: () => new Promise<void>((resolve) => this.pending.push(resolve)),
      getMappedRange: () => made.content.buffer,
      unmap: () => undefined,
      destroy: () => undefined,
    };
    return made as unknown as GPUBuffer;
  }

  private get position(): number {
    return this.history.length;
  }

  /** Some of the rounds on their way arrive. */
  async arrive(count = Math.floor(4 * this.chance())): Promise<void> {
    for (const resolve of this.pending.splice(0, count)) resolve();
    await settled();
  }

  /** A prompt, as far as there is room for one. */
  prompt(): void {
    if (this.position + 30 > CAPACITY) this.clear();
    this.version += 1;
    for (let i = 0; i < 7; i++) {
      this.write(this.position, 900 + i);
      this.history.push(900 + i);
    }
    this.length = this.position;
    this.written = Math.max(this.written, this.length);
  }

  clear(): void {
    this.version += 1;
    this.history.length = this.length = this.written = 0;
  }

  pop(): void {
    this.version += 1;
    const left = Math.min(this.position, Math.max(1, this.position - 10));
    if (this.written > ROWS) expect(left).toBeGreaterThanOrEqual(this.written - ROWS + WINDOW - 1); // or it would be refused
    this.history.length = this.length = left;
  }

  changes(): void {
    this.temperature = 3 - this.temperature;
  }

  seeds(): void {
    this.random.state = 1 + Math.floor(1e6 * this.chance());
  }

  forces(): void {
    this.token = (this.token + 1) % 997;
  }

  /** The client's next token, as its step driver comes by it; or it does not wait for what is drawn. */
  async step(waits = true): Promise<void> {
    const { position, token, rounds } = this;
    if (position + 1 > CAPACITY) this.clear();
    if (position !== this.position) return;
    const state = nextState(this.random.state);
    const uniform = bits(uniformOf(state));
    this.version += 1;
    this.length = position;
    let entry = rounds.take(position, token);
    if (!entry && rounds.isRunning) rounds.discard();
    if (entry) rounds.refill();
    else if (rounds.start(token, position)) {
      this.begun += 1;
      entry = rounds.take(position, token);
    }
    rounds.sampling = { temperature: this.temperature, topP: 1 };
    const expected = device.draw(token, position, uniform);
    if (entry && (entry.uniform !== uniform || entry.temperature !== this.temperature)) {
      rounds.discard(); // the client draws otherwise: the step runs again, by itself
      entry = undefined;
    }
    if (!entry) this.write(position, token);
    this.history.push(token);
    this.length = this.position;
    this.written = Math.max(this.written, this.length);
    this.random.state = state;
    if (entry && waits) {
      let hasArrived = false;
      void entry.read.arrival.then(() => {
        hasArrived = true;
      });
      await settled();
      while (!hasArrived) await this.arrive(1);
      expect(entry.read.value()).toBe(expected);
      this.given += 1;
    }
    this.token = expected;
  }

  private write(position: number, token: number): void {
    this.kv[position % ROWS] = token;
  }

  /** The device holds the keys and values that the next token sees. */
  check(): void {
    for (let position = Math.max(0, this.position - WINDOW + 1); position < this.position; position++)
      expect([position, this.kv[position % ROWS]]).toEqual([position, this.history[position]]);
  }
}

beforeEach(() => {
  vi.stubGlobal("GPUMapMode", { READ: 1 });
  vi.stubGlobal("GPUBufferUsage", { STORAGE: 128, MAP_READ: 1, COPY_DST: 8 });
  let now = 0;
  vi.spyOn(performance, "now").mockImplementation(() => ++now);
  const draw = (token: number, position: number, uniform: number) =>
    (31 * token + 7 * position + (uniform >>> 9)) % 997;
  Object.assign(device, { fails: false, capacity: CAPACITY, draw, rounds: [] });
});
afterEach(() => {
  device.write = () => undefined;
  vi.restoreAllMocks();
});

describe("whatever a client does", () => {
  it.each([1, 2, 3, 4, 5, 6])("its tokens and its keys and values are its own: %d", async (seed) => {
    const chance = numbers(seed);
    device.right = () => Math.floor(10 * chance() * chance());
    counts.overlappedRounds = 0;
    const world = new World(chance, [undefined, 1, 3, 8][seed % 4]);
    let disturbed = 0;
    for (let i = 0; i < EVENTS; i++) {
      const what = chance();
      if (chance() < 0.1) await world.arrive();
      if (what >= 0.2) await world.step();
      else {
        disturbed += 1;
        if (what < 0.03) await world.step(false); // and what follows comes before the token
        if (what < 0.06) world.prompt();
        else if (what < 0.07) world.clear();
        else if (what < 0.11) world.pop();
        else if (what < 0.14) world.changes();
        else if (what < 0.17) world.seeds();
        else world.forces();
      }
      world.check();
      if (what < 0.11) {
        const before = device.rounds.length;
        await world.arrive(9); // of what was on its way before, after the client has gone on
        expect(device.rounds.length).toBe(before);
        world.check();
      }
    }
    expect(world.given).toBeGreaterThan(0.6 * EVENTS);
    expect(world.begun).toBeLessThanOrEqual(2 * disturbed + 1);
    expect(counts.overlappedRounds).toBeGreaterThan(20);
    expect(world.failures).toBe(0);
  });
});
