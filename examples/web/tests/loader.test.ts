// What a person starts does not wait for what a person may overlook.
import { afterEach, expect, it, vi } from "vitest";
import type { Session } from "../src/chat/session";
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
