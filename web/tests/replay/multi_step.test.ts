import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { Device } from "../../src/gpu/device";
import type { Native } from "../../src/gpu/native";
import type { RandomNumbers } from "../../src/library/random";
import { type Entry, MultiStep } from "../../src/replay/multi_step";
import { SLOTS, type StepInputs, type Tables } from "../../src/replay/tables";
import { counts } from "../../src/stats";
import { fakeNative } from "../fake_device";

const STEP_MS = 1.5; // so that three submissions of eight steps are on their way
const BATCH = 8;
const WORDS = 64; // from a token of the ring to the next
const LOST = "the device was lost";

/** What the model says after a token, drawn with these numbers. */
const next = (token: number, { position, uniform }: StepInputs): number =>
  (31 * token + 7 * position + (uniform % 89)) % 1009;

interface Staging {
  content: Int32Array;
  isDestroyed: boolean;
  /** The map that is under way. */
  map: { came(): void; failed(error: Error): void; steps: number } | undefined;
}

let clock: number;
let isLost: boolean;
let ring: number[]; // tokens on the device
let rows: StepInputs[]; // by slot
let stagings: Staging[];
let maps: Staging[]; // under way, in the order of their submissions
let latest: StepInputs[]; // of the submission that is being made
let ahead: MultiStep;

/** One that is mapped when the test says so. */
function makeStaging(): GPUBuffer {
  const made: Staging = { content: new Int32Array(0), isDestroyed: false, map: undefined };
  stagings.push(made);
  return {
    mapAsync: () =>
      new Promise<void>((resolve, reject) => {
        expect(made).toMatchObject({ map: undefined, isDestroyed: false });
        made.map = { came: resolve, failed: reject, steps: latest.length };
        if (isLost) reject(new Error(LOST));
        else maps.push(made);
      }),
    getMappedRange: () => made.content.buffer,
    unmap: () => (made.map = undefined),
    destroy: () => (made.isDestroyed = true),
    made,
  } as unknown as GPUBuffer;
}

/** The device's part, in the order of its queue: inputs are written, the steps run, and their tokens are copied. */
function makeAhead(): MultiStep {
  const { native } = fakeNative();
  const tables = {
    tokens: { size: 4 * WORDS * SLOTS },
    tokenStride: 4 * WORDS,
    writeToken: (slot: number, token: number) => (ring[slot] = token),
    writeRows: (first: number, steps: readonly StepInputs[]) => {
      latest = [...steps];
      for (const [i, step] of steps.entries()) rows[(first + i) % SLOTS] = step;
    },
  } as unknown as Tables;
  let done = 0; // steps since the first
  const encoder = () => ({
    beginComputePass: () => ({
      setPipeline: () => undefined,
      setBindGroup: (_: number, slot: number) => {
        expect(slot).toBe(done % SLOTS); // one after the other
        ring[(slot + 1) % SLOTS] = next(ring[slot]!, rows[slot]!);
        done += 1;
      },
      dispatchWorkgroups: () => undefined,
      end: () => undefined,
    }),
    copyBufferToBuffer: (_: object, __: number, { made }: { made: Staging }) => {
      made.content = Int32Array.from({ length: WORDS * SLOTS }, (_, i) => (i % WORDS ? 0 : ring[i / WORDS]!));
    },
    finish: () => ({}),
  });
  Object.assign(native, { createBuffer: makeStaging, createCommandEncoder: encoder });
  const stream = { flush: () => undefined, submit: () => undefined };
  const launches = Array.from({ length: SLOTS }, (_, slot) => [{ pipeline: {}, group: slot, x: 1, y: 1, z: 1 }]);
  const device = { native: native as Native, stream } as unknown as Device;
  const random = { state: 77 } as RandomNumbers;
  return new MultiStep(
    device,
    tables,
    launches as never,
    random,
    () => 4096,
    () => undefined,
  );
}

beforeEach(() => {
  vi.stubGlobal("GPUMapMode", { READ: 1 });
  vi.stubGlobal("GPUBufferUsage", { MAP_READ: 1, COPY_DST: 8 });
  vi.spyOn(performance, "now").mockImplementation(() => clock);
  [clock, isLost, ring, rows, stagings, maps, latest] = [1000, false, [], [], [], [], []];
  counts.discardedSteps = 0;
  ahead = makeAhead();
  ahead.sampling = { temperature: 1, topP: 1 };
});
afterEach(() => void vi.restoreAllMocks());

/** The oldest submission that is under way comes back. */
function arrive(): void {
  const { map } = maps.shift()!;
  clock += STEP_MS * map!.steps;
  map!.came();
}

interface At {
  readonly token: number;
  readonly position: number;
}

/** The client asks for a step; nothing has come meanwhile. */
function ask({ token, position }: At): Entry {
  if (!ahead.isRunning) expect(ahead.start(token, position)).toBe(true);
  const entry = ahead.take(position, token)!;
  expect(entry.position).toBe(position);
  ahead.refill(position);
  return entry;
}

/** Its token, which is the model's, as soon as it is there, and where the client is then. */
async function read(entry: Entry, { token, position }: At): Promise<At> {
  let isThere = false;
  void entry.read.arrival.then(() => (isThere = true));
  await settled();
  while (!isThere) {
    arrive();
    await settled();
  }
  expect(entry.read.value()).toBe(next(token, entry));
  return { token: entry.read.value(), position: position + 1 };
}

async function say(count: number, at: At): Promise<At> {
  for (let i = 0; i < count; i++) at = await read(ask(at), at);
  return at;
}

const settled = async (): Promise<void> => {
  for (let i = 0; i < 5; i++) await Promise.resolve();
};

/** Replies until the client waits for the first of three submissions, all of them under way. */
async function askOfThree(from: At = { token: 5, position: 20 }): Promise<{ at: At; entry: Entry }> {
  let at = await say(60, from);
  for (let i = 0; i <= BATCH; i++) {
    const entry = ask(at);
    if (maps.length === 3) {
      expect(maps.map(({ map }) => map!.steps)).toEqual([BATCH, BATCH, BATCH]);
      return { at, entry };
    }
    at = await read(entry, at);
  }
  throw new Error("three are never under way");
}

/** All that is under way comes back. */
async function arriveAll(): Promise<void> {
  while (maps.length > 0) {
    arrive();
    await settled();
  }
}

describe("a reply that is stopped with three submissions under way", () => {
  it("leaves nothing in the next one, whose tokens come after theirs", async () => {
    const { at, entry } = await askOfThree();
    ahead.discard();
    expect([ahead.isRunning, counts.discardedSteps]).toEqual([false, 3 * BATCH - 1]);
    await read(entry, at); // the last token that the client asked for
    await say(40, { token: 611, position: 7 });
    expect(counts.discardedSteps).toBe(3 * BATCH - 1);
  });

  it("leaves nothing in one that begins while they are under way", async () => {
    const { at, entry } = await askOfThree();
    ahead.discard();
    const first = ask({ token: 611, position: 7 });
    expect(maps.map(({ map }) => map!.steps)).toEqual([8, 8, 8, 2, 2, 4, 8, 8]);
    await read(entry, at);
    await say(40, await read(first, { token: 611, position: 7 }));
  });

  it("gives its buffers to the next ones", async () => {
    const made = [];
    for (let i = 0; i < 4; i++) {
      await askOfThree({ token: 5 + i, position: 20 + 100 * i });
      ahead.discard();
      await arriveAll();
      made.push(stagings.length);
    }
    const most = [2, 2, 4, 8, 8]; // submissions of a reply's beginning, once the time of a step is known
    expect(made.slice(1)).toEqual([most.length, most.length, most.length]);
  });

  it("does not have the wait before the next one measured as a step's time", async () => {
    await askOfThree();
    const before = ahead.msPerToken;
    ahead.discard();
    await arriveAll();
    clock += 10_000;
    await say(10, { token: 3, position: 500 });
    expect(ahead.msPerToken).toBeCloseTo(before, 6);
  });

  it("still gives the token that is waited for, and no buffer is left, where the conversation ends", async () => {
    const { at, entry } = await askOfThree();
    ahead.destroy();
    await read(entry, at);
    await arriveAll();
    expect(stagings.every(({ isDestroyed }) => isDestroyed)).toBe(true);
  });
});

describe("a device that is lost with three submissions under way", () => {
  /** It fails all that is under way, and what comes after. */
  async function lose(): Promise<void> {
    isLost = true;
    for (const { map } of maps.splice(0)) map!.failed(new Error(LOST));
    await settled();
  }

  it("fails the step that the client waits for, and every later one", async () => {
    const { at, entry } = await askOfThree();
    const { arrival } = entry.read;
    await lose();
    await expect(arrival).rejects.toThrow(LOST);
    await expect(entry.read.arrival).rejects.toThrow(LOST);
    expect(ahead.take(at.position + 1, 0)).toBeUndefined();
    ahead.discard(); // the client begins anew
    await expect(ask({ token: 5, position: 20 }).read.arrival).rejects.toThrow(LOST);
  });

  it("leaves no buffer behind, whether the conversation ends before or after", async () => {
    for (const isEarly of [true, false]) {
      [isLost, stagings] = [false, []];
      ahead = makeAhead();
      ahead.sampling = { temperature: 1, topP: 1 };
      await askOfThree();
      if (isEarly) ahead.destroy();
      await lose();
      ahead.destroy();
      expect(stagings.every(({ isDestroyed }) => isDestroyed)).toBe(true);
    }
  });

  it("is nobody's surprise where nobody waits", async () => {
    await askOfThree();
    ahead.discard();
    await lose(); // vitest fails where a rejection has nobody to handle it
    expect(ahead.isRunning).toBe(false);
  });
});
