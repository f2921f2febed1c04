import { describe, expect, it } from "vitest";
import { nextState, RandomNumbers, uniformOf } from "../../src/library/random";

/** The client's generator, as TVM's web runtime writes it. */
function* client(seed: number): Generator<number> {
  for (let state = seed % 2147483647 || 1; ; ) {
    state = (48271 * state) % 2147483647;
    yield Math.fround(state / 2147483647);
  }
}

function foreseen(random: RandomNumbers): number | undefined {
  return random.state === undefined ? undefined : uniformOf(nextState(random.state));
}

describe("random numbers", () => {
  it("are foreseen after at most three of them, whatever the seed", () => {
    for (const seed of [1, 2, 7, 11, 48271, 123456789, 1732269600000, 2147483646, 2147483648]) {
      const numbers = client(seed);
      const random = new RandomNumbers();
      for (let i = 0; i < 3; i++) random.observe(numbers.next().value!);
      for (let i = 0; i < 500; i++) {
        const drawn = numbers.next().value!;
        expect(foreseen(random)).toBe(drawn);
        random.observe(drawn);
      }
    }
  });

  it("are learned anew after another seed", () => {
    const random = new RandomNumbers();
    const [first, second] = [client(5), client(6)];
    for (let i = 0; i < 20; i++) random.observe(first.next().value!);
    random.observe(second.next().value!);
    expect(random.state).toBeUndefined();
    random.observe(second.next().value!);
    random.observe(second.next().value!);
    expect(foreseen(random)).toBe(second.next().value);
  });

  it("of another generator are never foreseen wrongly for long", () => {
    const random = new RandomNumbers();
    let state = 1;
    let known = 0;
    for (let i = 0; i < 2000; i++) {
      state = (state * 16807) % 2147483647;
      random.observe(Math.fround(state / 2147483647));
      if (random.state !== undefined) known += 1;
    }
    expect(known).toBeLessThan(5);
  });

  it("outside of (0, 1] leave nothing known", () => {
    const random = new RandomNumbers();
    for (const value of [0, -1, NaN, 2, Infinity]) {
      random.observe(value);
      expect(random.state).toBeUndefined();
    }
  });
});
