import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { AsyncScheduler, type RecordedStep } from "../../src/driver/async_scheduler";
import type { RoundOwner } from "../../src/speculative/round_kernels";
import { counts } from "../../src/stats";
import { SLOTS, type Tables } from "../../src/replay/tables";
import { fakeNative } from "../fake_device";
import { device, type FakeStaging } from "../fake_rounds";

const STEP_MS = 10;
const STRIDE = 256;
const WORDS = STRIDE / 4;

/** What the model says after a token. */
const next = (token: number, position: number): number => (31 * token + 7 * position + 3) % 1009;

vi.mock("../../src/speculative/round_kernels", async () => ({
  RoundKernels: (await import("../fake_rounds")).FakeRoundKernels,
}));

let clock: number;
let version: number;
let length: number;
let ring: number[];
let sizes: number[]; // steps of submissions without drafts
let stepMs: number; // of them
let submitted: number; // command buffers, each handed over by itself
let released: number;
let drafter: { weights: number; drafts?: number; mostDrafts: number };
let scheduler: AsyncScheduler;

/** Copies arrive in their order, each after the time that it takes. */
function staging(): GPUBuffer & FakeStaging {
  const made = {
    content: new Int32Array(0),
    ms: 0,
    mapAsync: async () => {
      await Promise.resolve(); // not while it is submitted
      clock += made.ms;
    },
    getMappedRange: () => made.content.buffer,
    unmap: () => undefined,
    destroy: () => undefined,
  };
  return made as unknown as GPUBuffer & FakeStaging;
}

function copied(source: object, target: GPUBuffer & FakeStaging, tables: Tables): void {
  if (source === tables.tokens) {
    target.content = Int32Array.from({ length: SLOTS * WORDS }, (_, i) => (i % WORDS ? 0 : ring[i / WORDS]!));
    target.ms = stepMs * sizes.at(-1)!;
  }
}

beforeEach(() => {
  vi.stubGlobal("GPUMapMode", { READ: 1 });
  vi.stubGlobal("GPUBufferUsage", { STORAGE: 128, MAP_READ: 1, COPY_DST: 8 });
  vi.spyOn(performance, "now").mockImplementation(() => clock);
  [clock, version, length, ring, sizes, released] = [1000, 0, 20, Array(SLOTS).fill(0) as number[], [], 0];
  [stepMs, submitted] = [STEP_MS, 0];
  Object.assign(device, { right: () => 9, draw: next, ms: STEP_MS, fails: false, capacity: 4096, rounds: [] });
  [counts.reasons.length, counts.guessedSteps] = [0, 0];
  const tables = {
    slots: Array.from({ length: SLOTS }, () => ({})),
    tokens: { size: SLOTS * STRIDE },
    tokenStride: STRIDE,
    writeToken: (slot: number, token: number) => (ring[slot] = token),
    writeRows: (first: number, steps: { position: number }[]) => {
      sizes.push(steps.length);
      for (const [i, { position }] of steps.entries())
        ring[(first + i + 1) % SLOTS] = next(ring[(first + i) % SLOTS]!, position);
    },
  } as unknown as Tables;
  const { native } = fakeNative();
  const makeEncoder = native.createCommandEncoder;
  Object.assign(native, {
    createBuffer: staging,
    createCommandEncoder: () => ({
      ...makeEncoder(),
      copyBufferToBuffer: (from: object, _: number, to: GPUBuffer & FakeStaging) => copied(from, to, tables),
    }),
  });
  drafter = {
    weights: 5,
    mostDrafts: 8,
    release: () => {
      released += 1;
      drafter.weights = 0;
    },
  } as typeof drafter;
  const library = {
    random: { state: 77 },
    exports: {
      gemma4_driver_length: () => length,
      gemma4_driver_room: () => 4096 - length,
      gemma4_driver_wrote: () => 0,
      gemma4_driver_version: () => version,
    },
  };
  const stream = {
    flush: () => undefined,
    submit: (commands: GPUCommandBuffer[]) => {
      expect(commands).toHaveLength(1);
      submitted += 1;
    },
  };
  const owner = { library, drafter, state: 1, device: { native, stream } } as unknown as RoundOwner;
  const recorded = { record: { bind: () => [] } };
  const step = { decode: recorded, softmax: recorded, sample: recorded } as unknown as RecordedStep;
  scheduler = new AsyncScheduler(owner, tables, step);
  scheduler.sampling = { temperature: 1, topP: 1 };
});
afterEach(() => void vi.restoreAllMocks());

/** The client's side of so many tokens, each the model's; how many of them had to be begun with. */
async function say(count: number, from = { token: 5, position: 20 }): Promise<number> {
  let { token, position } = from;
  let begun = 0;
  for (let i = 0; i < count; i++) {
    version += 1;
    length = position;
    let entry = scheduler.take(position, token);
    if (!entry) {
      begun += 1;
      expect(scheduler.start(token, position)).toBe(true);
      entry = scheduler.take(position, token)!;
    }
    scheduler.refill(position);
    await entry.read.arrival;
    expect(entry.read.value()).toBe(next(token, position));
    token = entry.read.value();
    position += 1;
  }
  Object.assign(from, { token, position });
  return begun;
}

describe("tokens ahead of the client", () => {
  it("are drafted once the time of a step is known", async () => {
    const at = { token: 5, position: 20 };
    await say(4, at);
    expect(device.rounds).toEqual([]);
    await say(60, at);
    expect(device.rounds.length).toBeGreaterThan(5);
    expect(counts.guessedSteps).toBeGreaterThan(25); // of 40, for the steps before were on their way
  });

  it("run one after the other, several at a time, while drafts do not pay", async () => {
    Object.assign(device, { right: () => 0, ms: 5 * STEP_MS });
    const at = { token: 5, position: 20 };
    while (device.rounds.length === 0) await say(1, at);
    const before = sizes.length;
    let begun = 0;
    for (let i = 0; sizes.length === before && i < 40; i++) begun += await say(1, at);
    expect(begun).toBe(1); // the tokens of rounds, all that were on their way, and then a beginning
    const rounds = device.rounds.length;
    expect(rounds).toBeLessThan(20);
    expect(await say(50, at)).toBe(0); // each was on its way when it was asked for
    expect(device.rounds.length).toBe(rounds);
    expect(Math.max(...sizes.slice(before))).toBeGreaterThan(1);
    await say(60, at);
    expect(device.rounds.length).toBeGreaterThan(rounds); // after 64 tokens they are tried again
  });

  // With quick steps a third submission keeps the GPU at work until the tokens of the first have been read.
  it.each([
    { ms: 1.5, largest: 8, least: 16 },
    { ms: 4, largest: 8, least: 10 },
    { ms: 10, largest: 4, least: 4 },
    { ms: 15, largest: 2, least: 2 },
  ])("are at least $least of $ms ms, in submissions of $largest at most", async ({ ms, largest, least }) => {
    stepMs = ms;
    drafter.weights = 0;
    const at = { token: 5, position: 20 };
    await say(100, at); // their time is known
    const before = { batches: sizes.length, submitted };
    for (let i = 0; i < 40; i++) {
      await say(1, at);
      const ahead = sizes.reduce((sum, size) => sum + size) - (at.position - 20);
      expect(ahead).toBeGreaterThanOrEqual(least);
      expect(ahead).toBeLessThan(least + largest);
    }
    const made = sizes.slice(before.batches);
    expect(Math.max(...made)).toBe(largest);
    expect(submitted - before.submitted).toBe(made.reduce((sum, size) => sum + Math.ceil(size / 4), 0));
  });

  it("go on one by one where the library cannot draft", async () => {
    device.fails = true;
    await say(30);
    expect(counts.reasons).toEqual(["no tokens are drafted: not such a library"]);
    expect(released).toBe(1);
    expect(sizes.reduce((sum, size) => sum + size)).toBeGreaterThanOrEqual(30);
  });

  it("are drafted where the library is given a drafter again", async () => {
    device.fails = true;
    const at = { token: 5, position: 20 };
    await say(30, at);
    Object.assign(device, { fails: false });
    drafter.weights = 6;
    at.token += 1; // another reply
    await say(30, at);
    expect(device.rounds.length).toBeGreaterThan(5);
    expect(counts.reasons).toHaveLength(1);
  });

  it("go on one by one where another conversation has given the drafter up", async () => {
    const at = { token: 5, position: 20 };
    await say(30, at);
    [version, length] = [version + 1, at.position];
    const entry = scheduler.take(at.position, at.token)!;
    scheduler.refill(at.position);
    const rounds = device.rounds.length;
    drafter.weights = 0;
    device.dependent!.bufferGone(); // its weights, in the middle of a step
    await entry.read.arrival;
    expect(entry.read.value()).toBe(next(at.token, at.position));
    await say(30, { token: entry.read.value(), position: at.position + 1 });
    expect(device.rounds.length).toBe(rounds);
    expect([counts.reasons, released]).toEqual([[], 0]);
  });

  it("are as many in a round as was asked for last, from the next reply on", async () => {
    const at = { token: 5, position: 20 };
    for (const drafts of [2, 5]) {
      drafter.drafts = drafts;
      device.rounds = [];
      await say(30, at);
      at.token += 1; // another reply
      expect(new Set(device.rounds.map(({ rows }) => rows))).toEqual(new Set([1, drafts + 1]));
    }
  });

  it("are no more than the library's rings have room for", async () => {
    [drafter.drafts, drafter.mostDrafts] = [5, 3];
    await say(30);
    expect(new Set(device.rounds.map(({ rows }) => rows))).toEqual(new Set([1, 4]));
  });

  it("are never drafted where that was asked for", async () => {
    drafter.drafts = 0;
    await say(40);
    expect(device.rounds).toEqual([]);
    expect(counts.guessedSteps).toBe(0);
  });
});
