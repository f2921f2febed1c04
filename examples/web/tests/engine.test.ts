import { afterEach, expect, it, vi } from "vitest";
import { Engine } from "../src/engine/engine";
import type { ToWorker } from "../src/engine/protocol";
import type { Package } from "../src/package/package";

afterEach(() => vi.unstubAllGlobals());

it("tells the worker which library the page chose, and why", async () => {
  const sent: ToWorker[] = [];
  class FakeWorker {
    onmessage: ((event: unknown) => void) | undefined;
    postMessage(message: ToWorker): void {
      sent.push(message);
      this.onmessage?.({ data: { kind: "started", fast: {} } });
    }
    terminate(): void {}
  }
  vi.stubGlobal("Worker", FakeWorker);
  vi.stubGlobal("caches", { open: async () => ({ match: async () => new Response("library") }) });
  const choice = { name: "int8", why: "the fastest here", isFixed: false };
  const pack = {
    url: "https://example.org/model/",
    version: "0123456789abcdef",
    library: "model-int8.wasm",
    requirements: { features: [] },
    drafter: new Set(),
    shards: new Set(),
    choice,
  } as unknown as Package;
  const options = { context: 1024, fast: true, drafts: false };
  const engine = await Engine.start(pack, options, vi.fn(), vi.fn());
  expect(sent).toMatchObject([{ kind: "start", library: choice }]);
  engine.dispose();
});
