import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { AloneSteps } from "../../src/driver/alone_steps";
import { counts } from "../../src/stats";

let now = 0;
beforeEach(() => {
  now = 0;
  counts.aloneMs = 0;
  vi.spyOn(performance, "now").mockImplementation(() => now);
});
afterEach(() => vi.restoreAllMocks());

/** Steps that take so long each, one after the other. */
function run(steps: AloneSteps, times: readonly number[], from = 0) {
  steps.asked(from, false);
  for (const [i, ms] of times.entries()) {
    now += ms;
    steps.asked(from + i + 1, false);
  }
}

it("takes the middle of the last steps", () => {
  const steps = new AloneSteps();
  run(steps, [9, 9, 9]);
  expect([steps.ms, counts.aloneMs]).toEqual([0, 0]);
  run(steps, [1000, 9, 8], 50);
  expect([steps.ms, counts.aloneMs]).toEqual([9, 9]);
  run(
    steps,
    Array.from({ length: 15 }, () => 4),
    90,
  );
  expect(steps.ms).toBe(4);
});

it("counts neither steps that ran ahead, nor those that others follow, nor what comes between replies", () => {
  const steps = new AloneSteps();
  for (let i = 0; i < 40; i += 4) {
    steps.asked(i, false); // alone, and ended by the next
    now += 7;
    steps.asked(i + 1, false);
    steps.forget(); // others are submitted with it
    now += 1;
    steps.asked(i + 2, true);
    now += 1;
    steps.asked(i + 3, true);
    now += 100;
  }
  expect(steps.ms).toBe(7);
  const jumping = new AloneSteps();
  for (let i = 0; i < 20; i += 2) jumping.asked(i, false);
  expect(jumping.ms).toBe(0);
});
