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
  const loader = new Loader(session, { state: vi.fn(), failed: vi.fn() });
  const load = vi.fn(async () => undefined);
  Object.assign(loader, { pack: { url: "https://x.y/" }, load });
  await loader.start();
  expect(load).toHaveBeenCalledOnce();
});
