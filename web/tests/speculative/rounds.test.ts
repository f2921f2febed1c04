import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { bits } from "../../src/replay/multi_step";
import { DraftPace } from "../../src/speculative/draft_pace";
import { nextState, uniformOf } from "../../src/library/random";
import type { RoundKernels, RoundOwner } from "../../src/speculative/round_kernels";
import { Rounds } from "../../src/speculative/rounds";
import { counts } from "../../src/stats";
import { fakeNative } from "../fake_device";
import { device, FakeRoundKernels, type FakeStaging } from "../fake_rounds";

const RING = 10_000; // positions that a ring lets run ahead, where a test says no other
const SEED = 77;

let clock: number;
let version: number;
let ring: number;
let length: number;
let step: number; // where the client's latest step is, which may run again until the next one
let wrote: number;
let failures: string[];
let pace: DraftPace;
let kernels: FakeRoundKernels;
let rounds: Rounds;
let isHeld: boolean; // records arrive when the test says so
let held: { arrive: () => Promise<void>; fail: (why: Error) => void }[];
let stagings: { isDestroyed: boolean }[];
let latest: Promise<void>;
let refusals: (GPUError | null)[]; // what scopes of errors close with, in turn

const settled = () => new Promise<void>((done) => setTimeout(done, 0));

function staging(): GPUBuffer {
  const made = {
    content: new Int32Array(0),
    ms: 0,
    isDestroyed: false,
    abort: (): void => undefined,
    mapAsync: () => {
      if (!isHeld) {
        // One after the other, and the client goes on between.
        latest = latest.then(settled).then(() => {
          clock += made.ms;
        });
        return latest;
      }
      return new Promise<void>((resolve, reject) => {
        const arrive = () => {
          clock += made.ms;
          resolve();
          return settled();
        };
        held.push({ arrive, fail: reject });
        made.abort = () => reject(new Error("unmapped before mapping was resolved"));
      });
    },
    getMappedRange: () => made.content.buffer,
    unmap: () => undefined,
    destroy: () => {
      made.isDestroyed = true;
      made.abort();
    },
  } satisfies FakeStaging & Record<string, unknown>;
  stagings.push(made);
  return made as unknown as GPUBuffer;
}

/** Rounds of so many drafts, or as many as pay. */
function open(drafts?: number): void {
  pace = new DraftPace(8, drafts);
  kernels = new FakeRoundKernels();
  const native = { ...fakeNative().native, createBuffer: staging, popErrorScope: async () => refusals.shift() ?? null };
  const owner = {
    library: { random: { state: SEED } },
    device: { native, stream: { flush: () => undefined, submit: () => undefined } },
  } as unknown as RoundOwner;
  rounds = new Rounds(owner, kernels as unknown as RoundKernels, pace, {
    length: () => length,
    room: () => Math.min(ring, device.capacity - length),
    wrote: (end) => {
      expect(end).toBeLessThanOrEqual(step + Math.min(ring, device.capacity - step));
      wrote = Math.max(wrote, end);
    },
    version: () => version,
    plainMs: () => 10,
    failed: (error) => failures.push(String(error)),
  });
  rounds.sampling = { temperature: 1, topP: 1 };
}

beforeEach(() => {
  vi.stubGlobal("GPUMapMode", { READ: 1 });
  vi.stubGlobal("GPUBufferUsage", { STORAGE: 128, MAP_READ: 1, COPY_DST: 8 });
  vi.spyOn(performance, "now").mockImplementation(() => clock);
  [clock, version, ring, length, step, wrote, failures] = [1000, 1, RING, 20, 20, 0, []];
  [isHeld, held, stagings, latest, refusals] = [true, [], [], Promise.resolve(), []];
  const draw = (token: number, position: number, uniform: number) =>
    (31 * token + 7 * position + (uniform >>> 9)) % 997;
  Object.assign(device, { fails: false, capacity: 4096, ms: 5, msPerRow: 0, right: () => 9, draw, rounds: [] });
  Object.assign(counts, { overlappedRounds: 0, draftRounds: 0, guessedSteps: 0 });
  open(3);
});
afterEach(() => {
  for (const { position, rows } of device.rounds) expect(position + rows).toBeLessThanOrEqual(wrote);
  vi.restoreAllMocks();
});

/** The client asks for the token after one of its own; undefined if no round has it. */
function take(position: number, token: number) {
  version += 1; // begin_forward
  length = step = position;
  const entry = rounds.take(position, token);
  if (entry) rounds.refill();
  length = position + 1; // end_forward
  return entry;
}

function begin(token = 5, position = 20): boolean {
  version += 1;
  length = step = position;
  const isBegun = rounds.start(token, position);
  if (isBegun) expect(rounds.take(position, token)).toBeDefined();
  length = position + 1;
  return isBegun;
}

/** So many tokens of the client's, each as it draws them by itself; how many times it had to begin. */
async function say(count: number, from = { token: 5, position: 20, state: SEED }): Promise<number> {
  let begun = 0;
  for (let i = 0; i < count; i++) {
    const { token, position } = from;
    version += 1;
    length = step = position;
    let entry = rounds.take(position, token);
    if (entry) rounds.refill();
    else {
      begun += 1;
      expect(rounds.start(token, position)).toBe(true);
      entry = rounds.take(position, token)!;
      rounds.refill();
    }
    length = position + 1;
    await entry.read.arrival;
    const state = nextState(from.state);
    expect([position, entry.uniform]).toEqual([position, bits(uniformOf(state))]);
    expect(entry.read.value()).toBe(device.draw(token, position, bits(uniformOf(state))));
    Object.assign(from, { token: entry.read.value(), position: position + 1, state });
  }
  return begun;
}

describe("rounds give the client's own tokens", () => {
  const patterns: [string, (round: number) => number][] = [
    ["all", () => 9],
    ["none", () => 0],
    ["one", () => 1],
    ["now more, now fewer", (round) => (round * 7) % 5],
  ];
  it.each(patterns.flatMap(([name, right]) => [1, 3, 8].map((drafts) => [name, drafts, right] as const)))(
    "where of the drafts come true: %s, of %d",
    async (_, drafts, right) => {
      device.right = right;
      isHeld = false;
      open(drafts);
      expect(await say(300)).toBe(1); // the table wraps twice
      expect(counts.overlappedRounds).toBeGreaterThan(0.9 * counts.draftRounds - 2);
      const [first, ...others] = device.rounds;
      expect(first!.rows).toBe(1);
      expect(new Set(others.map(({ rows }) => rows))).toEqual(new Set([drafts + 1]));
      const accepted = device.rounds.slice(0, -8).reduce((sum, round) => sum + round.accepted, 0);
      expect(counts.guessedSteps).toBeGreaterThanOrEqual(accepted - 8);
    },
  );

  it("up to the end of the context", async () => {
    Object.assign(device, { capacity: 90, right: (round: number) => round % 4 });
    isHeld = false;
    open(4);
    const at = { token: 5, position: 20, state: SEED };
    expect(await say(70, at)).toBe(1);
    expect(wrote).toBe(90);
    expect(begin(at.token, at.position)).toBe(false); // there is no room
  });

  it("also where the number of drafts changes", async () => {
    Object.assign(device, { right: (round: number) => (round % 40 < 20 ? 9 : 1), ms: 3, msPerRow: 2 });
    isHeld = false;
    open();
    await say(400);
    expect(new Set(device.rounds.map(({ rows }) => rows)).size).toBeGreaterThan(5);
  });
});

describe("rounds on their way", () => {
  it("are two before anything is read, and the client waits for the first", async () => {
    begin();
    expect(device.rounds.map(({ position, rows }) => [position, rows])).toEqual([
      [20, 1], // without drafts: it is there for the state
      [21, 4],
    ]);
    expect(wrote).toBe(25);
    await held[0]!.arrive();
    const token = device.rounds[0]!.drawn[0]!;
    expect(take(20, token)).toBeUndefined();
    expect(take(21, token + 1)).toBeUndefined(); // not the token that the round reads
    expect(take(21, token)?.read.value()).toBeUndefined(); // on its way
  });

  it("count in their order, however they are read", async () => {
    begin();
    await held[1]!.arrive();
    await held[0]!.arrive();
    const [first, second] = device.rounds;
    let token = first!.drawn[0]!;
    for (let row = 0; row < 4; row++) {
      const entry = take(21 + row, token)!;
      await entry.read.arrival;
      token = entry.read.value();
      expect(token).toBe(second!.drawn[row]);
    }
  });

  it("are as many as bring no more text at a time than steps without drafts", async () => {
    for (const [ms, most] of [
      [5, 4],
      [15, 2],
      [100, 2],
    ] as const) {
      [held, device.rounds, device.ms, device.right] = [[], [], ms, () => 0];
      open(3);
      begin();
      const before = () => device.rounds.length - done;
      let done = 0;
      for (; done < 12; done++) {
        await held[done]!.arrive();
        take(21 + done, device.rounds[done]!.drawn[0]!);
      }
      expect(before()).toBe(most);
    }
  });

  it("leave a third of the room, but where nothing would go on without it", async () => {
    isHeld = false;
    for (const [positions, overlapped, rows] of [
      [30, true, 9],
      [14, false, 9],
      [3, false, 2], // the step before them, and two
    ] as const) {
      [ring, wrote, device.rounds, counts.overlappedRounds] = [positions, 0, [], 0];
      open(8);
      expect(await say(60)).toBe(1);
      expect(counts.overlappedRounds > 0).toBe(overlapped);
      expect(Math.max(...device.rounds.map((round) => round.rows))).toBe(rows);
      await latest;
    }
  });

  it("are the last when the client copies the state", async () => {
    begin();
    await held[0]!.arrive();
    take(21, device.rounds[0]!.drawn[0]!);
    const [before, noted] = [device.rounds.length, wrote];
    rounds.pause();
    for (const { arrive } of held.slice(1)) await arrive();
    expect([device.rounds.length, wrote]).toEqual([before, noted]);
    expect(take(22, device.rounds[1]!.drawn[0]!)).toBeDefined(); // what came of them counts
  });

  it("are the last when the client stops", async () => {
    isHeld = false;
    device.right = () => 0;
    open(8);
    await say(50);
    const before = device.rounds.length; // one of them was called for by the last token
    for (let i = 0; i < 20; i++) await settled();
    expect(device.rounds.length).toBe(before);
  });

  it("are used when no others are to follow", async () => {
    isHeld = false;
    device.ms = 1;
    open();
    const at = { token: 5, position: 20, state: SEED };
    await say(60, at);
    vi.spyOn(pace, "wantsRounds").mockReturnValue(false);
    const entry = take(at.position, at.token)!;
    await latest;
    const begun = device.rounds.length;
    const { position, accepted } = device.rounds.at(-1)!;
    let token = entry.read.value();
    for (let next = at.position + 1; next <= position + accepted; next++) {
      const found = take(next, token);
      expect(found, `position ${next} of ${position} + ${accepted}`).toBeDefined();
      token = found!.read.value();
    }
    expect(device.rounds.length).toBe(begun);
    expect(rounds.isRunning).toBe(false);
  });
});

describe("a client that does something else", () => {
  it("gets no round after its prompt, pop or abort", async () => {
    begin();
    await held[0]!.arrive();
    const before = device.rounds.length;
    version += 1; // a prompt is on its way, and nothing asked for a token since
    for (const { arrive } of held.slice(1)) await arrive();
    expect(device.rounds.length).toBe(before);
    expect(rounds.isRunning).toBe(false);
  });

  it("begins anew, with another temperature, while rounds are on their way", async () => {
    begin();
    await held[0]!.arrive();
    rounds.sampling = { temperature: 2, topP: 1 };
    rounds.discard();
    const [old, at] = [held.length, device.rounds.length];
    begin(9, 30);
    expect(device.rounds.slice(0, at).every(({ temperature }) => temperature === 1)).toBe(true);
    expect(device.rounds.slice(at).map(({ temperature }) => temperature)).toEqual([2, 2, 2, 2]);
    for (const { arrive } of held.slice(1, old)) await arrive();
    expect(device.rounds.length).toBe(at + 4); // what came of the others is nobody's
    await held[old]!.arrive();
    const [first, second] = device.rounds.slice(at);
    expect(first).toMatchObject({ position: 30, rows: 1 });
    expect(second!.position).toBe(31);
    const entry = take(31, first!.drawn[0]!)!;
    expect(entry).toMatchObject({ temperature: 2, position: 31 });
    expect(failures).toEqual([]);
  });

  it("and forgets them", async () => {
    begin();
    rounds.discard();
    const before = device.rounds.length;
    for (const { arrive } of held) await arrive();
    expect(rounds.isRunning).toBe(false);
    expect(device.rounds.length).toBe(before);
  });
});

describe("rounds end", () => {
  it("where the library fails", async () => {
    Object.assign(kernels, {
      draft: (count: number) => {
        if (count > 0) throw new WebAssembly.RuntimeError("unreachable");
        return [];
      },
    });
    begin();
    expect(failures).toEqual(["RuntimeError: unreachable"]);
    expect(device.rounds).toHaveLength(1);
    await held[0]!.arrive();
    expect(failures).toHaveLength(1);
  });

  it("where the device loses count of them", async () => {
    begin();
    await held[0]!.arrive();
    const entry = take(21, device.rounds[0]!.drawn[0]!)!;
    (stagings[1] as unknown as FakeStaging).content[0] = 22;
    void held[1]!.arrive();
    await expect(entry.read.arrival).rejects.toThrow("lost count");
    expect(failures).toEqual(["Error: the device lost count of its rounds"]);
  });

  it("with the device: who waits hears of it, and nobody else", async () => {
    begin();
    await held[0]!.arrive();
    const entry = take(21, device.rounds[0]!.drawn[0]!)!;
    for (const { fail } of held.slice(1)) fail(new Error("the device is lost"));
    await expect(entry.read.arrival).rejects.toThrow("lost");
    await settled();
    expect(failures).toEqual([]);
  });

  it.each([
    ["drafts, which none come true without", [null, { message: "no" }], true],
    ["the model, which there are no tokens without", [null, null, { message: "no" }], false],
  ])("where the device refuses the launches of %s", async (_, scopes, comes) => {
    refusals = scopes as GPUError[];
    begin();
    await held[0]!.arrive();
    const entry = take(21, device.rounds[0]!.drawn[0]!)!;
    if (comes) {
      void held[1]!.arrive();
      expect(await entry.read.arrival.then(() => entry.read.value())).toBe(device.rounds[1]!.drawn[0]!);
    } else await expect(entry.read.arrival).rejects.toThrow("refuses a round: no");
    expect(failures).toEqual(["Error: the device refuses a round: no"]);
  });

  it("and leave no buffers", async () => {
    begin();
    await held[0]!.arrive();
    rounds.destroy();
    for (const { arrive } of held.slice(1)) await arrive();
    expect(stagings.every(({ isDestroyed }) => isDestroyed)).toBe(true);
    expect(kernels.isDestroyed).toBe(true);
    expect(failures).toEqual([]);
  });
});
