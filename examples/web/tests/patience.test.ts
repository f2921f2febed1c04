// Nothing of the page waits for ever.
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { fetchChecked, readSmall, Unreachable } from "../src/download/fetch";
import { openStorage } from "../src/download/storage";
import { UserError } from "../src/package/user_error";
import { afterPatience, PATIENCE_MS, Stalled, unlessStalled } from "../src/patience";

beforeEach(() => void vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] }));
afterEach(() => {
  vi.unstubAllGlobals(); // first: what was put in the place of a timer gives way to a fake one
  vi.useRealTimers();
  vi.restoreAllMocks();
});

const never = () => new Promise<never>(() => undefined);

it("hands over what comes in time, values and errors, and leaves no timer behind", async () => {
  expect(await unlessStalled(Promise.resolve(3))).toBe(3);
  await expect(unlessStalled(Promise.reject(new TypeError("x")))).rejects.toThrow(TypeError);
  expect(vi.getTimerCount()).toBe(0);
});

it("is late after the time of its own, and not before", async () => {
  const late = vi.fn();
  afterPatience(late);
  afterPatience(late)();
  await vi.advanceTimersByTimeAsync(PATIENCE_MS - 1);
  expect(late).not.toHaveBeenCalled();
  await vi.advanceTimersByTimeAsync(1);
  expect(late).toHaveBeenCalledOnce();
  expect(vi.getTimerCount()).toBe(0);
});

it("counts a time in which the page stood still as one step", async () => {
  const late = vi.fn();
  afterPatience(late);
  const timers: (() => void)[] = [];
  vi.stubGlobal("setTimeout", (run: () => void) => timers.push(run));
  await vi.advanceTimersByTimeAsync(5000); // the first step ends: from here on only what is called runs
  for (let woken = 0; woken < 5; woken++) timers.shift()!();
  expect(late).not.toHaveBeenCalled();
  while (timers.length) timers.shift()!();
  expect(late).toHaveBeenCalledOnce();
});

it("says which server does not answer, and asks it no more", async () => {
  let asked: AbortSignal | undefined;
  vi.stubGlobal("fetch", (_: string, { signal }: RequestInit) => {
    asked = signal!;
    return never();
  });
  const failed = fetchChecked("https://x.y/a").catch((error: unknown) => error);
  await vi.advanceTimersByTimeAsync(PATIENCE_MS);
  const error = (await failed) as UserError;
  expect(error).toBeInstanceOf(Unreachable);
  expect(error.message).toBe("x.y does not answer.");
  expect(asked!.aborted).toBe(true);
});

it("ends a request with whoever asks for it, also after its answer began", async () => {
  let asked: AbortSignal | undefined;
  vi.stubGlobal("fetch", async (_: string, { signal }: RequestInit) => {
    asked = signal!;
    return new Response("x");
  });
  const abort = new AbortController();
  await fetchChecked("https://x.y/a", { signal: abort.signal });
  expect(asked!.aborted).toBe(false);
  abort.abort("paused");
  expect([asked!.aborted, asked!.reason]).toEqual([true, "paused"]);
});

it("reads no small file for ever", async () => {
  const cancel = vi.fn();
  const response = new Response(new ReadableStream({ pull: never, cancel }));
  const failed = readSmall(response, "https://x.y/a", 9, new UserError("", "")).catch((error: unknown) => error);
  await vi.advanceTimersByTimeAsync(PATIENCE_MS);
  expect(await failed).toBeInstanceOf(Unreachable);
  expect(cancel).toHaveBeenCalledOnce();
});

it.each<[string, RegExp, () => Promise<unknown>]>([
  ["does not answer", /does not answer/, never],
  [
    "refuses",
    /store nothing \(The operation is insecure\.\)/,
    async () => {
      throw new DOMException("The operation is insecure.", "SecurityError");
    },
  ],
  [
    "has none",
    /store nothing: there is no place/,
    async () => {
      throw new ReferenceError("caches is not defined");
    },
  ],
])("says what helps where the browser's storage %s", async (_, words, open) => {
  vi.spyOn(console, "warn").mockImplementation(() => undefined);
  vi.stubGlobal("caches", { open });
  const failed = openStorage("a").catch((error: unknown) => error);
  await vi.advanceTimersByTimeAsync(PATIENCE_MS);
  const error = (await failed) as UserError;
  expect(error).toBeInstanceOf(UserError);
  expect(error.message).toMatch(words);
  expect(error.hint).toMatch(/private browsing|other tabs/);
});

it("names what stalls as such", async () => {
  const failed = unlessStalled(never()).catch((error: unknown) => error);
  await vi.advanceTimersByTimeAsync(PATIENCE_MS);
  expect(await failed).toBeInstanceOf(Stalled);
});
