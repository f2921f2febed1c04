import type { Profile, Stats } from "gemma4-web/fast";
import { afterEach, expect, it, vi } from "vitest";
import { Engine } from "../src/engine/engine";
import type { FromWorker, ToWorker } from "../src/engine/protocol";
import type { Package } from "../src/package/package";

afterEach(() => vi.unstubAllGlobals());

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
const options = (signal: AbortSignal) => ({ context: 1024, fast: true, drafts: false, signal });

/** What the page sends to its worker, which starts or loads for ever, and how often it was ended. */
function fakeWorker(starts: boolean) {
  let hear: (message: FromWorker) => void = () => undefined;
  const seen = { sent: [] as ToWorker[], ended: 0, tell: (message: FromWorker) => hear(message) };
  class FakeWorker {
    onmessage: ((event: unknown) => void) | undefined;
    postMessage(message: ToWorker): void {
      seen.sent.push(message);
      hear = (data) => this.onmessage?.({ data });
      if (starts && message.kind === "start") hear({ kind: "started", fast: {} as Stats });
    }
    terminate(): void {
      seen.ended += 1;
    }
  }
  vi.stubGlobal("Worker", FakeWorker);
  vi.stubGlobal("caches", { open: async () => ({ match: async () => new Response("library") }) });
  return seen;
}

it("tells the worker which library the page chose, and why", async () => {
  const { sent } = fakeWorker(true);
  const engine = await Engine.start(pack, options(new AbortController().signal), vi.fn(), vi.fn());
  expect(sent).toMatchObject([{ kind: "start", library: choice }]);
  engine.dispose();
});

it("tells the worker where the table lies, and nothing of a package without one", async () => {
  const { sent } = fakeWorker(true);
  const table = { place: "host", why: "it is large", savedBytes: 9, wish: "auto" } as const;
  for (const each of [{ ...pack, table }, pack])
    (await Engine.start(each, options(new AbortController().signal), vi.fn(), vi.fn())).dispose();
  expect(sent.map((message) => message.kind === "start" && message.table)).toEqual([
    { place: "host", savedBytes: 9 },
    undefined,
  ]);
});

it("ends its worker where the start is ended, which might go on reading what is removed", async () => {
  const seen = fakeWorker(false);
  const abort = new AbortController();
  const start = Engine.start(pack, options(abort.signal), vi.fn(), vi.fn());
  await vi.waitFor(() => expect(seen.sent).toHaveLength(1));
  expect(seen.ended).toBe(0);
  abort.abort();
  await expect(start).rejects.toThrow(/unloaded/);
  expect(seen.ended).toBeGreaterThan(0);
});

it("answers a message that comes while kernels are timed after them, from the beginning of its chat", async () => {
  const { sent, tell } = fakeWorker(true);
  const engine = await Engine.start(pack, options(new AbortController().signal), vi.fn(), vi.fn());
  const profile = { clock: "device", steps: [] } as unknown as Profile;
  const profiling = engine.profile();
  const generation = {
    temperature: 0,
    topP: 1,
    repetitionPenalty: 1,
    frequencyPenalty: 0,
    presencePenalty: 0,
    maxTokens: 8,
    seed: 1,
    chat: "a",
  };
  const replying = engine.reply([{ role: "user", content: "Hi" }], generation, 0, vi.fn());
  await Promise.resolve();
  expect(sent.map(({ kind }) => kind)).toEqual(["start", "profile"]);
  const [, asked] = sent as [unknown, Extract<ToWorker, { kind: "profile" }>];
  expect(asked.text.length).toBeLessThan(options(new AbortController().signal).context);
  tell({ kind: "profiled", id: asked.id, profile });
  expect(await profiling).toBe(profile);
  await vi.waitFor(() => expect(sent).toHaveLength(3));
  tell({ kind: "end", id: asked.id + 1, fast: {} as Stats });
  await replying;
  await expect(Promise.all([engine.profile(), engine.dispose()])).rejects.toThrow(/unloaded/);
});
