import { describe, expect, it } from "vitest";
import { addPace, NO_PACE, ReplyClock, tokensPerSecond, tokensPerStep } from "../src/engine/speed";

function clockOf(...milliseconds: number[]): ReplyClock {
  const clock = new ReplyClock();
  for (const at of milliseconds) clock.hear(at);
  return clock;
}

describe("the speed of a reply", () => {
  it("is that of the tokens after the first, by the clock", () => {
    const clock = clockOf(250, 260, 270, 280, 290, 290); // five tokens, and how the reply ended
    expect(clock.firstTokenSeconds).toBe(0.25);
    expect(clock.pace(5)).toEqual({ tokens: 4, seconds: expect.closeTo(0.04), drafted: 0 });
    expect(tokensPerSecond(clock.pace(5))).toBeCloseTo(100);
  });

  it("counts tokens whose text is held back until a character is whole", () => {
    // An emoji of four tokens comes as one chunk, the last ones only with the end.
    expect(tokensPerSecond(clockOf(100, 140, 180).pace(9))).toBeCloseTo(100);
  });

  it("takes tokens that come several at a time as long as they took together", () => {
    expect(tokensPerSecond(clockOf(0, 0, 0, 0, 8, 8, 8, 8, 16).pace(9))).toBeCloseTo(500);
  });

  it("of a single token, or of none, is unknown", () => {
    expect(tokensPerSecond(clockOf(50, 51).pace(1))).toBeUndefined();
    expect(tokensPerSecond(clockOf(50).pace(2))).toBeUndefined();
    expect(tokensPerSecond(new ReplyClock().pace(0))).toBeUndefined();
    expect(new ReplyClock().firstTokenSeconds).toBe(0);
  });

  it("counts the tokens of a step where some were drafted", () => {
    const clock = clockOf(0, 10, 20);
    expect(tokensPerStep(clock.pace(13))).toBeUndefined();
    expect(tokensPerStep(clock.pace(13, 8))).toBe(3);
    expect(tokensPerStep(addPace(clock.pace(13, 8), clock.pace(5)))).toBe(2);
  });

  it("of several rounds leaves out what lies between them", () => {
    const [first, second] = [clockOf(100, 200, 300).pace(3), clockOf(2000, 2010).pace(21)];
    const pace = [first, second].reduce(addPace, NO_PACE);
    expect(pace.tokens).toBe(22);
    expect(tokensPerSecond(pace)).toBeCloseTo(22 / 0.21);
  });
});
