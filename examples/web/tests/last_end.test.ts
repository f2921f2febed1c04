// How the page ended last, for a browser that ends what takes too much memory.
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { AtWork, lastEnd } from "../src/engine/last_end";
import type { Package } from "../src/package/package";
import { GIB, MIB } from "../src/package/units";

const URL_ = "https://x.y/a/";
const pack = (weightsBytes = GIB) =>
  ({
    url: URL_,
    contextLength: 100,
    requirements: { weightsBytes, kvSlidingBytes: 0, kvFullBytes: 0, activationBytes: 0 },
  }) as unknown as Package;

let kept: Map<string, string>;
let document_: EventTarget & { hidden: boolean };
let window_: EventTarget;

beforeEach(() => {
  kept = new Map();
  document_ = Object.assign(new EventTarget(), { hidden: false });
  window_ = new EventTarget();
  vi.stubGlobal("document", document_);
  vi.stubGlobal("addEventListener", window_.addEventListener.bind(window_));
  vi.stubGlobal("localStorage", {
    getItem: (key: string) => kept.get(key) ?? null,
    setItem: (key: string, text: string) => kept.set(key, text),
    removeItem: (key: string) => kept.delete(key),
  });
});
afterEach(() => vi.unstubAllGlobals());

const show = (isShown: boolean) => {
  document_.hidden = !isShown;
  document_.dispatchEvent(new Event("visibilitychange"));
};

it("is known where it came in the middle of work, for the package alone", () => {
  new AtWork().begin(pack(), 50, "answering");
  expect(lastEnd(URL_)).toEqual({ url: URL_, context: 50, kind: "answering" });
  expect(lastEnd("https://x.y/b/")).toBeUndefined();
});

it.each<[string, (work: AtWork) => void]>([
  ["the work was done", (work) => work.end()],
  ["the person left", () => window_.dispatchEvent(new Event("pagehide"))],
  ["nobody looked at the page", () => show(false)],
])("tells nothing where %s", (_, end) => {
  const work = new AtWork();
  work.begin(pack(), 50, "starting");
  expect(lastEnd(URL_)).toBeDefined();
  end(work);
  expect(lastEnd(URL_)).toBeUndefined();
});

it("counts again when the page is shown again in the middle of work, and after work no more", () => {
  const work = new AtWork();
  work.begin(pack(), 50, "starting");
  show(false);
  show(true);
  expect(lastEnd(URL_)).toBeDefined();
  window_.dispatchEvent(new Event("pagehide"));
  window_.dispatchEvent(new Event("pageshow"));
  expect(lastEnd(URL_)).toBeDefined();
  work.end();
  show(false);
  show(true);
  expect(lastEnd(URL_)).toBeUndefined();
});

it("leaves what another tab is at", () => {
  new AtWork().begin(pack(), 50, "starting");
  const other = new AtWork();
  other.begin(pack(MIB), 50, "starting"); // too small to be noted
  other.end();
  expect(lastEnd(URL_)).toBeDefined();
});

it("is nothing where storage is damaged, or off", () => {
  for (const text of [
    "{",
    "null",
    "3",
    '{"url":"https://x.y/a/"}',
    '{"url":"https://x.y/a/","context":1,"kind":"x"}',
  ]) {
    kept.set("gemma4-at-work", text);
    expect(lastEnd(URL_)).toBeUndefined();
  }
  const refuse = () => {
    throw new DOMException("off", "SecurityError");
  };
  vi.stubGlobal("localStorage", { getItem: refuse, setItem: refuse, removeItem: refuse });
  const work = new AtWork();
  work.begin(pack(), 50, "starting");
  work.end();
  expect(lastEnd(URL_)).toBeUndefined();
});
