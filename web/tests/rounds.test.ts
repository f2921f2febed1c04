import { beforeEach, describe, expect, it, vi } from "vitest";
import { DraftPace } from "../src/draft_pace";
import type { RoundKernels, RoundOwner } from "../src/round_kernels";
import { Rounds } from "../src/rounds";
import { fakeNative } from "./fake_device";

const STRIDE = 256;
const MAX_ROWS = 9;

/** What the device finds in a round: the token drawn from each row, and the guesses. */
interface Answer {
  readonly drawn: readonly number[];
  readonly guesses: readonly number[];
}

let version: number;
let room: number;
let written: { position: number; token: number; uniforms: readonly number[] }[];
let wrote: number[];
let failures: string[];
let arrive: ((answer: Answer) => Promise<void>)[];
let kernels: RoundKernels;
let rounds: Rounds;

function staging(): GPUBuffer {
  let content = new Int32Array(0);
  return {
    mapAsync: () =>
      new Promise<void>((resolve) => {
        arrive.push(async ({ drawn, guesses }) => {
          content = new Int32Array((STRIDE * MAX_ROWS) / 4 + MAX_ROWS);
          for (const [row, token] of drawn.entries()) content[(row * STRIDE) / 4] = token;
          content.set(guesses, (STRIDE * MAX_ROWS) / 4 + 1);
          resolve();
          await new Promise((done) => setTimeout(done, 0));
        });
      }),
    getMappedRange: () => content.buffer,
    unmap: () => undefined,
    destroy: () => undefined,
  } as unknown as GPUBuffer;
}

beforeEach(() => {
  vi.stubGlobal("GPUMapMode", { READ: 1 });
  vi.stubGlobal("GPUBufferUsage", { MAP_READ: 1, COPY_DST: 8 });
  [version, room, written, wrote, failures, arrive] = [1, 100, [], [], [], []];
  const native = { ...fakeNative().native, createBuffer: staging };
  const owner = {
    library: { random: { state: 77 } },
    device: { native, stream: { flush: () => undefined, submit: () => undefined } },
  } as unknown as RoundOwner;
  const buffer = (size: number) => ({ size }) as GPUBuffer;
  kernels = {
    stride: STRIDE,
    stateBytes: 16,
    drawn: buffer(STRIDE * MAX_ROWS),
    ids: buffer(4 * MAX_ROWS),
    states: buffer(16 * MAX_ROWS),
    hidden: [buffer(16), buffer(16)],
    tokens: Array.from({ length: MAX_ROWS }, () => buffer(4)),
    guess: () => [],
    run: () => [],
    write: (inputs: (typeof written)[0]) => written.push(inputs),
    destroy: () => undefined,
  } as unknown as RoundKernels;
  rounds = new Rounds(owner, kernels, new DraftPace(8, 3), {
    room: () => room,
    wrote: (length) => wrote.push(length),
    version: () => version,
    plainMs: () => 10,
    failed: (error) => failures.push(String(error)),
  });
  rounds.sampling = { temperature: 1, topP: 1 };
});

/** The client takes a token at `position`; what it gives, once it is there. */
function take(position: number, token: number): number | undefined {
  version += 1;
  const entry = rounds.take(position, token);
  if (entry) rounds.refill(position);
  return entry?.read.value() as number | undefined;
}

/** The first round has no guesses: it is there for the state. */
async function begun(): Promise<void> {
  expect(rounds.start(5, 20)).toBe(true);
  take(20, 5);
  await arrive[0]!({ drawn: [6], guesses: [] });
}

describe("rounds", () => {
  it("give the tokens up to the first guess that did not come true", async () => {
    await begun();
    expect(written.map(({ position, token, uniforms }) => [position, token, uniforms.length])).toEqual([
      [20, 5, 1],
      [21, 6, 4],
    ]);
    expect(wrote).toEqual([21, 25]);
    rounds.take(21, 6);
    await arrive[1]!({ drawn: [7, 8, 9, 10], guesses: [7, 8, 1] });
    expect(take(22, 7)).toBe(8);
    expect(take(23, 8)).toBe(9);
    expect(rounds.take(24, 9)?.position).toBe(24); // of the next round, which reads the token drawn last
    expect(written[2]).toMatchObject({ position: 24, token: 9 });
  });

  it("draw with the client's numbers, one a token", async () => {
    await begun();
    await arrive[1]!({ drawn: [7, 8, 9, 10], guesses: [7, 1, 1] });
    const [first, second, third] = written.map(({ uniforms }) => uniforms);
    expect(new Set([...first!, ...second!]).size).toBe(5);
    expect(third![0]).toBe(second![2]); // two tokens counted, so the third number is the next
  });

  it("do not begin after the client's next prompt, pop or abort", async () => {
    await begun();
    take(21, 6);
    version += 1; // a prompt is on its way, and nothing asked for a token since
    await arrive[1]!({ drawn: [7, 8, 9, 10], guesses: [7, 8, 9] });
    expect(written).toHaveLength(2);
    expect(rounds.isRunning).toBe(false);
  });

  it("of before are forgotten", async () => {
    await begun();
    rounds.discard();
    await arrive[1]!({ drawn: [7, 8, 9, 10], guesses: [7, 8, 9] });
    expect(rounds.isRunning).toBe(false);
    expect(written).toHaveLength(2);
  });

  it("guess no more than there is room for", async () => {
    room = 3;
    await begun();
    expect(written[1]!.uniforms.length).toBeLessThanOrEqual(2);
  });

  it("end where the library fails", async () => {
    Object.assign(kernels, {
      guess: () => {
        throw new WebAssembly.RuntimeError("unreachable");
      },
    });
    await begun();
    expect(failures).toEqual(["RuntimeError: unreachable"]);
    expect(written).toHaveLength(1);
  });
});
