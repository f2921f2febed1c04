// What a person starts does not wait for what a person may overlook.
import { afterEach, describe, expect, it, vi } from "vitest";
import type { Session } from "../src/chat/session";
import { EngineLost } from "../src/engine/failures";
import { Loader } from "../src/loader";

afterEach(() => vi.unstubAllGlobals());

it.each([
  ["asks whether it may keep data, and nobody answers", { persist: () => new Promise(() => undefined) }],
  ["refuses to be asked", { persist: () => Promise.reject(new TypeError("no")) }],
  ["cannot be asked", {}],
])("a download begins where the browser %s", async (_, storage) => {
  vi.stubGlobal("navigator", { storage });
  const session = { settings: { accepted: [] }, changeSettings: vi.fn() } as unknown as Session;
  const loader = new Loader(session, { state: vi.fn(), failed: vi.fn(), offered: vi.fn() });
  const load = vi.fn(async () => undefined);
  Object.assign(loader, { pack: { url: "https://x.y/" }, load });
  await loader.start();
  expect(load).toHaveBeenCalledOnce();
});

it("a load that ends while the table's place is chosen does not take the model from other tabs", async () => {
  const held: string[] = [];
  let choose: (() => void) | undefined;
  vi.stubGlobal("navigator", {
    gpu: { requestAdapter: () => new Promise((resolve) => (choose = () => resolve(null))) },
    locks: { request: async (name: string) => void held.push(name) },
    userAgent: "",
  });
  const pack = {
    url: "https://x.y/",
    contextLength: 8,
    drafter: new Map(),
    requirements: { weightsBytes: 9, kvSlidingBytes: 0, kvFullBytes: 0, activationBytes: 0, hostTableBytes: 5 },
  };
  const settings = { accepted: [], fast: true, drafts: true, table: "auto", allowedMemory: 0, context: {} };
  const session = { settings, changeSettings: vi.fn() } as unknown as Session;
  const state = vi.fn();
  const loader = new Loader(session, { state, failed: vi.fn(), offered: vi.fn() });
  Object.assign(loader, { pack, whole: pack });
  const started = loader.start();
  await vi.waitFor(() => expect(choose).toBeDefined());
  expect(state).toHaveBeenLastCalledWith(expect.objectContaining({ kind: "progress" }));
  loader.pause();
  choose!();
  await started;
  expect(held).toEqual([]);
  expect(state).toHaveBeenLastCalledWith(expect.objectContaining({ title: "The download is paused." }));
});

describe("a wait that may not end", () => {
  /** A device that is looked for until the test has it found. */
  function open() {
    const found: (() => void)[] = [];
    const requestAdapter = () => new Promise((resolve) => found.push(() => resolve(null)));
    vi.stubGlobal("navigator", { gpu: { requestAdapter }, userAgent: "" });
    vi.stubGlobal("isSecureContext", true);
    vi.stubGlobal("document", { baseURI: "https://x.y/" });
    const settings = { accepted: [], fast: true, libraries: {} };
    const session = { settings, changeSettings: vi.fn() } as unknown as Session;
    const state = vi.fn();
    const loader = new Loader(session, { state, failed: vi.fn(), offered: vi.fn() });
    void loader.open("https://x.y/a/");
    return { loader, state, found };
  }

  it("is said to be one after a minute, with a way out", async () => {
    vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
    const { loader, state, found } = open();
    expect(state).toHaveBeenLastCalledWith({ kind: "busy", text: expect.any(String) });
    await vi.advanceTimersByTimeAsync(60_000);
    expect(state).toHaveBeenLastCalledWith({ kind: "busy", text: expect.any(String), isLate: true });
    void loader.retry();
    expect(state).toHaveBeenLastCalledWith({ kind: "busy", text: expect.any(String) });
    found[1]!();
    await vi.advanceTimersByTimeAsync(0);
    expect(state).toHaveBeenLastCalledWith({ kind: "no-webgpu", error: expect.anything() });
    await vi.advanceTimersByTimeAsync(600_000);
    expect(state).toHaveBeenCalledTimes(4);
    vi.useRealTimers();
  });

  it("changes nothing any more where it ends after all, when something else was begun", async () => {
    const { loader, state, found } = open();
    void loader.retry();
    found[1]!();
    await vi.waitFor(() => expect(state).toHaveBeenCalledTimes(3));
    found[0]!();
    await new Promise((resolve) => setTimeout(resolve));
    expect(state).toHaveBeenCalledTimes(3);
  });
});

describe("a model that is lost", () => {
  function lost(hidden: boolean) {
    const page = Object.assign(new EventTarget(), { hidden });
    vi.stubGlobal("document", page);
    const engine = { dispose: vi.fn() };
    const session = { settings: {}, engine } as unknown as Session;
    const state = vi.fn();
    const loader = new Loader(session, { state, failed: vi.fn(), offered: vi.fn() });
    const load = vi.fn(async () => undefined);
    Object.assign(loader, { load });
    const lose = () => {
      session.engine = engine as unknown as NonNullable<Session["engine"]>;
      loader["onLost"](new EngineLost("gone", "start it"), session.engine);
    };
    lose();
    const show = () => {
      page.hidden = false;
      page.dispatchEvent(new Event("visibilitychange"));
    };
    return { loader, load, state, show, lose };
  }

  it("starts again at once where somebody looks, but not a second time", () => {
    const { load, state, lose } = lost(false);
    expect(load).toHaveBeenCalledOnce();
    lose();
    expect(load).toHaveBeenCalledOnce();
    expect(state).toHaveBeenLastCalledWith(expect.objectContaining({ kind: "failed", retry: "Start again" }));
  });

  it("starts again when somebody looks at its page, as often as that is", () => {
    const { load, state, show, lose } = lost(true);
    expect(load).not.toHaveBeenCalled();
    expect(state).toHaveBeenLastCalledWith(expect.objectContaining({ kind: "failed", title: "gone" }));
    show();
    expect(load).toHaveBeenCalledOnce();
    lose(); // with the page shown: the first of its kind
    expect(load).toHaveBeenCalledTimes(2);
  });

  it("does not start by itself any more where the person has chosen otherwise", () => {
    const { loader, load, show } = lost(true);
    loader["unload"]();
    show();
    expect(load).not.toHaveBeenCalled();
  });
});
