import { describe, expect, it } from "vitest";
import traces from "../../../tests/unit/runtime/speculative/draft_paces.json";
import { DraftPace } from "../../src/speculative/draft_pace";

const PLAIN_MS = 10;

/** Rounds, each of as many drafts as the pace wants, until it pauses or there were `most`; returns how many there were. */
function rounds(pace: DraftPace, accepted: number, ms: number, most = 40): number {
  let done = 0;
  for (; done < most && pace.wantsRounds(PLAIN_MS); done++) {
    pace.noteRound(pace.count, Math.min(accepted, pace.count), ms, PLAIN_MS);
  }
  return done;
}

describe("the number of drafts", () => {
  it.each(traces)("is that of the Python runtime: $name", ({ most, plain, rounds }) => {
    const pace = new DraftPace(most);
    for (const [drafted, accepted, ms, expected] of rounds as [number, number, number, number][]) {
      pace.noteRound(drafted, accepted, ms, plain);
      if (expected > 0) {
        expect(pace.wantsRounds(plain)).toBe(true);
        expect(pace.count).toBe(expected);
      } else expect(pace.wantsRounds(plain)).toBe(false);
      while (!pace.wantsRounds(plain)) pace.noteStep();
    }
  });

  it("grows where all come true, as far as there is room", () => {
    const pace = new DraftPace(6);
    expect(pace.count).toBe(3);
    rounds(pace, 6, 11);
    expect(pace.count).toBe(6);
  });

  it("is the one that was asked for", () => {
    const pace = new DraftPace(8, 4);
    expect(rounds(pace, 0, 1000)).toBe(40);
    expect(pace.count).toBe(4);
    expect(pace.wantsRounds(0)).toBe(true);
    expect(new DraftPace(8, 0).wantsRounds(10)).toBe(false);
    expect(new DraftPace(8, 20).count).toBe(8);
  });
});

describe("rounds", () => {
  it("wait until the time of a step without drafts is known", () => {
    const pace = new DraftPace(8);
    expect(pace.wantsRounds(0)).toBe(false);
    expect(pace.wantsRounds(10)).toBe(true);
  });

  it("pause where they take longer than their tokens would, each time for twice as long", () => {
    const pace = new DraftPace(8);
    for (const pause of [64, 128, 256, 512, 1024, 1024]) {
      expect(rounds(pace, 0, 15)).toBeLessThan(12);
      for (let i = 0; i < pause; i++) {
        expect(pace.wantsRounds(10)).toBe(false);
        pace.noteStep();
      }
      expect(pace.wantsRounds(10)).toBe(true);
    }
    rounds(pace, 8, 12); // they pay for a while
    rounds(pace, 0, 15);
    for (let i = 0; i < 64; i++) pace.noteStep();
    expect(pace.wantsRounds(10)).toBe(true);
  });

  it("that were on their way when drafts paused tell nothing", () => {
    const [pace, other] = [new DraftPace(8), new DraftPace(8)];
    for (const one of [pace, other]) rounds(one, 0, 15);
    for (let i = 0; i < 30; i++) pace.noteRound(4, 4, 1, 10);
    expect(pace.wantsRounds(10)).toBe(false);
    expect(pace.count).toBe(other.count);
  });

  it("of a number that is new are not timed", () => {
    const pace = new DraftPace(8);
    pace.noteRound(3, 0, 1000, 10);
    expect(pace.wantsRounds(10)).toBe(true);
    pace.noteRound(3, 3, 15, 10);
    expect(pace.wantsRounds(10)).toBe(true);
  });

  it("without a draft tell nothing", () => {
    const pace = new DraftPace(8);
    for (let i = 0; i < 20; i++) pace.noteRound(0, 0, 1000, 10);
    expect(pace.wantsRounds(10)).toBe(true);
  });
});
