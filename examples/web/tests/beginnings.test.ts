import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { beginningsFor, type BeginningsWish } from "../src/package/beginnings";
import type { Package } from "../src/package/package";
import { GIB, MIB } from "../src/package/units";

const PACK = {
  contextLength: 1000,
  requirements: { weightsBytes: 3 * GIB, kvSlidingBytes: 0, kvFullBytes: GIB, activationBytes: 0, hostTableBytes: 0 },
} as unknown as Package;

/** A desktop computer's: 0 of memory where it reports none. */
const device = (memoryBytes = 0, maxBufferSize = 4 * GIB) => ({
  memoryBytes,
  limits: { maxBufferSize } as Record<"maxBufferSize", number> as never,
});
const wishes = (beginnings: BeginningsWish, allowedMemory = 0, fast = true) => ({ beginnings, allowedMemory, fast });
const bytes = (...args: Parameters<typeof beginningsFor>) => beginningsFor(...args).bytes;

beforeEach(() => void vi.stubGlobal("navigator", { userAgent: "", maxTouchPoints: 0 }));
afterEach(() => vi.unstubAllGlobals());

it("takes an eighth of what the model takes where nothing says that memory is short", () => {
  expect(bytes(PACK, wishes("auto"), device(), 1000)).toBe(GIB / 2);
  expect(bytes(PACK, wishes("auto"), device(8 * GIB), 500)).toBe((3.5 / 8) * GIB); // 8 GiB stand for any more
  const weights = (weightsBytes: number) => ({ ...PACK, requirements: { ...PACK.requirements, weightsBytes } });
  expect(bytes(weights(1000), wishes("auto"), device(), 1)).toBe(64 * MIB);
  expect(bytes(weights(40 * GIB), wishes("auto"), device(), 1000)).toBe(2 * GIB);
});

it("takes a quarter of what is left at most, and nothing where that is little", () => {
  expect(bytes(PACK, wishes("auto", 5 * GIB), device(), 1000)).toBe(GIB / 4);
  expect(bytes(PACK, wishes("auto", 4 * GIB + 64 * MIB), device(), 1000)).toBe(16 * MIB);
  const tight = beginningsFor(PACK, wishes("auto", 4 * GIB + 63 * MIB), device(), 1000);
  expect(tight).toEqual({ bytes: 0, why: "the model takes 4.00 GiB, and 4.06 GiB are allowed", wish: "auto" });
  expect(bytes(PACK, wishes("auto"), device(4 * GIB), 1000)).toBe(0);
  expect(bytes(PACK, wishes("auto"), device(0, 512 * MIB), 1000)).toBe(0); // a small device
});

it("counts no table that lies elsewhere", () => {
  const table = { place: "host" as const, savedBytes: 3 * GIB, why: "", wish: "host" as const };
  expect(bytes({ ...PACK, table }, wishes("auto", 2 * GIB), device(), 1000)).toBe(GIB / 8);
});

it.each<[string, ReturnType<typeof beginningsFor>["why"] | RegExp, () => ReturnType<typeof beginningsFor>]>([
  ["without fast decoding", /only fast decoding/, () => beginningsFor(PACK, wishes("512", 0, false), device(), 1000)],
  ["where a person says so", /asked for/, () => beginningsFor(PACK, wishes("off"), device(), 1000)],
  [
    "on a phone",
    /a phone/,
    () => {
      vi.stubGlobal("navigator", { userAgent: "Android", maxTouchPoints: 5 });
      return beginningsFor(PACK, wishes("auto"), device(), 1000);
    },
  ],
])("takes nothing %s", (_, why, found) => {
  expect(found()).toMatchObject({ bytes: 0, why: expect.stringMatching(why) });
});

it("takes what a person says, also where memory is short", () => {
  expect(beginningsFor(PACK, wishes("128", GIB), device(), 1000)).toEqual({
    bytes: 128 * MIB,
    why: "it was asked for",
    wish: "128",
  });
});
