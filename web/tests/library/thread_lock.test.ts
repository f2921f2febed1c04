// A thread of a tab that was put aside may have a lock for as long as nobody looks at that tab.
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { removeBeginnings } from "../../src/library/beginning_files";
import { RowFile } from "../../src/library/row_file";
import { alone } from "../../src/library/thread_lock";

const HOUR_MS = 3_600_000;

/** Locks as browsers have them: one after the other under a name, and whoever waits may end that. */
function fakeLocks() {
  const last = new Map<string, Promise<unknown>>();
  return {
    request: async <T>(name: string, { signal }: { signal: AbortSignal }, action: () => Promise<T>): Promise<T> => {
      const before = last.get(name) ?? Promise.resolve();
      const ended = new Promise<never>((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
      const run = Promise.race([before, ended]).then(action);
      last.set(name, Promise.allSettled([before, run]));
      return run;
    },
  };
}

beforeEach(() => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
  vi.stubGlobal("navigator", { locks: fakeLocks() });
});
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

const forEver = () => new Promise<never>(() => undefined);
const reasonOf = async (wait: Promise<unknown>) => {
  const reason = wait.then(
    () => undefined,
    (error: Error) => error.message,
  );
  await vi.advanceTimersByTimeAsync(HOUR_MS);
  return reason;
};

it("waits for who is at work, however long the own work takes then", async () => {
  const order: string[] = [];
  let end = (): void => undefined;
  const first = alone("a", () => new Promise<void>((resolve) => (end = resolve)));
  const second = alone("a", async () => {
    order.push("second");
    await new Promise((resolve) => setTimeout(resolve, HOUR_MS));
    return 2;
  });
  await vi.advanceTimersByTimeAsync(1000);
  expect(order).toEqual([]);
  end();
  await first;
  await vi.advanceTimersByTimeAsync(HOUR_MS);
  expect(await second).toBe(2);
});

it("does not wait without an end, and leaves undone what it waited for", async () => {
  void alone("a", forEver);
  const action = vi.fn(forEver);
  expect(await reasonOf(alone("a", action))).toMatch(/another tab of this site/);
  expect(action).not.toHaveBeenCalled();
  expect(await reasonOf(alone("b", async () => undefined))).toBeUndefined();
});

it("bears being put aside for hours itself: its timers come late, and one after the other", async () => {
  let end = (): void => undefined;
  void alone("a", () => new Promise<void>((resolve) => (end = resolve)));
  const second = alone("a", async () => 2);
  await vi.runOnlyPendingTimersAsync();
  end();
  expect(await second).toBe(2);
});

it.each<[string, string, () => Promise<unknown>]>([
  ["a table's file", "gemma4-web-rows", () => RowFile.open(8, "a")],
  ["a removal of beginnings", "gemma4-web-beginnings", () => removeBeginnings({})],
])("%s says so, too", async (_, name, action) => {
  void alone(name, forEver);
  expect(await reasonOf(action())).toMatch(/another tab of this site/);
});

it("does not wait where a browser has no locks", async () => {
  vi.stubGlobal("navigator", {});
  void alone("a", forEver);
  expect(await alone("a", async () => 1)).toBe(1);
});
