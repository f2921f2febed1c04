import { describe, expect, it } from "vitest";
import { DraftPace } from "../src/draft_pace";

/** A pace that has seen a round of four guesses, whose first one is not timed. */
function begun(): DraftPace {
  const pace = new DraftPace(8);
  pace.noteRound(4, 2, 1000, 10);
  return pace;
}

/** Eight rounds of a pace, each of which took `ms`. */
function rounds(pace: DraftPace, accepted: number, ms: number, plainMs = 10): void {
  for (let i = 0; i < 8; i++) pace.noteRound(4, accepted, ms, plainMs);
}

describe("the number of guesses", () => {
  it("grows by one where all came true, and shrinks where less than half did", () => {
    const pace = new DraftPace(8);
    expect(pace.count).toBe(3);
    pace.noteRound(3, 3, 1, 10);
    expect(pace.count).toBe(4);
    pace.noteRound(4, 2, 1, 10);
    expect(pace.count).toBe(4);
    pace.noteRound(4, 1, 1, 10);
    expect(pace.count).toBe(3);
    for (let i = 0; i < 20; i++) pace.noteRound(pace.count, 0, 1, 10);
    expect(pace.count).toBe(1);
    for (let i = 0; i < 20; i++) pace.noteRound(pace.count, pace.count, 1, 10);
    expect(pace.count).toBe(8);
  });

  it("grows once for all rounds of a number that were on their way", () => {
    const pace = new DraftPace(8);
    for (let i = 0; i < 3; i++) pace.noteRound(3, 3, 1, 10);
    expect(pace.count).toBe(4);
  });

  it("is the one that was asked for", () => {
    const pace = new DraftPace(8, 4);
    rounds(pace, 0, 1000);
    expect(pace.count).toBe(4);
    expect(pace.wantsRounds(0)).toBe(true);
    expect(new DraftPace(8, 0).wantsRounds(10)).toBe(false);
    expect(new DraftPace(8, 20).count).toBe(8);
  });
});

describe("rounds", () => {
  it("wait until the time of a step without guesses is known", () => {
    const pace = new DraftPace(8);
    expect(pace.wantsRounds(0)).toBe(false);
    expect(pace.wantsRounds(10)).toBe(true);
  });

  it("pause where they take longer than their tokens would, each time for twice as long", () => {
    const pace = begun();
    for (const pause of [64, 128, 256, 512, 1024, 1024]) {
      rounds(pace, 1, 21);
      for (let i = 0; i < pause; i++) {
        expect(pace.wantsRounds(10)).toBe(false);
        pace.noteStep();
      }
      expect(pace.wantsRounds(10)).toBe(true);
    }
    rounds(pace, 1, 19);
    expect(pace.wantsRounds(10)).toBe(true);
    rounds(pace, 1, 21);
    for (let i = 0; i < 64; i++) pace.noteStep();
    expect(pace.wantsRounds(10)).toBe(true);
  });

  it("that were on their way when guesses paused tell nothing", () => {
    const pace = begun();
    rounds(pace, 0, 100);
    for (let i = 0; i < 3; i++) pace.noteRound(4, 4, 1, 10);
    expect(pace.count).toBe(3);
    expect(pace.wantsRounds(10)).toBe(false);
  });

  it("of a number that is new are not timed", () => {
    const pace = begun();
    for (let guesses = 1; guesses <= 8; guesses++) pace.noteRound(guesses, 0, 1000, 10);
    rounds(pace, 1, 19);
    expect(pace.wantsRounds(10)).toBe(false); // 4 had been there before
    const other = begun();
    for (const guesses of [1, 2, 3, 5, 6, 7, 8]) other.noteRound(guesses, 0, 1000, 10);
    rounds(other, 1, 19);
    expect(other.wantsRounds(10)).toBe(true);
  });

  it("without a guess tell nothing", () => {
    const pace = new DraftPace(8);
    for (let i = 0; i < 20; i++) pace.noteRound(0, 0, 1000, 10);
    expect(pace.wantsRounds(10)).toBe(true);
  });
});
