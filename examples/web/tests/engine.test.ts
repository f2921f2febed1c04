import type { Profile, Stats } from "gemma4-web/fast";
import { afterEach, expect, it, vi } from "vitest";
import { lockOfLife } from "../src/engine/alive";
import { Embedder } from "../src/engine/embedder";
import { Engine } from "../src/engine/engine";
import { EngineLost } from "../src/engine/failures";
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

/** Locks as browsers have them; `end` lets go of those that are held, as the end of a thread does. */
function fakeLocks() {
  const waiting: { name: string; begin: () => unknown }[] = [];
  const held = new Set<string>();
  const request = async (name: string, options: { signal: AbortSignal } | (() => unknown), action?: () => unknown) => {
    const { signal } = typeof options === "function" ? { signal: undefined } : options;
    const own = typeof options === "function" ? options : action!;
    if (!held.has(name)) {
      held.add(name);
      return own();
    }
    await new Promise<void>((resolve, reject) => {
      waiting.push({ name, begin: resolve });
      signal?.addEventListener("abort", () => reject(signal.reason));
    });
    if (!signal?.aborted) own();
  };
  vi.stubGlobal("navigator", { locks: { request } });
  return { end: () => waiting.splice(0).map(({ begin }) => begin()), held };
}

it.each([
  ["in the middle of a reply", true],
  ["while nobody asks", false],
])("hears that the browser has ended the worker %s, of which the worker itself says nothing", async (_, asks) => {
  const locks = fakeLocks();
  const { sent, tell } = fakeWorker(true);
  const onLost = vi.fn();
  const engine = await Engine.start(pack, options(new AbortController().signal), vi.fn(), onLost);
  tell({ kind: "alive", lock: (await lockOfLife())! });
  expect(locks.held.size).toBe(1);
  const generation = { temperature: 0, topP: 1, repetitionPenalty: 1, frequencyPenalty: 0, presencePenalty: 0 };
  const whole = { ...generation, maxTokens: 8, seed: 1, chat: "a" };
  const reply = asks ? engine.reply([{ role: "user", content: "Hi" }], whole, 0, vi.fn()) : Promise.resolve();
  if (asks) await vi.waitFor(() => expect(sent).toHaveLength(2));
  expect(onLost).not.toHaveBeenCalled();
  locks.end();
  if (asks) await expect(reply).rejects.toThrow(/browser has ended the model/);
  await vi.waitFor(() => expect(onLost).toHaveBeenCalledOnce());
  expect(onLost.mock.calls[0]![0]).toBeInstanceOf(EngineLost);
});

it("takes a worker that it has ended itself for no loss", async () => {
  const locks = fakeLocks();
  const { tell } = fakeWorker(true);
  const onLost = vi.fn();
  const engine = await Engine.start(pack, options(new AbortController().signal), vi.fn(), onLost);
  tell({ kind: "alive", lock: (await lockOfLife())! });
  engine.dispose();
  locks.end();
  await new Promise((resolve) => setTimeout(resolve));
  expect(onLost).not.toHaveBeenCalled();
});

it("hears that the browser has ended an embedder's worker, too", async () => {
  const locks = fakeLocks();
  const seen = fakeWorker(false);
  const onLost = vi.fn();
  const starting = Embedder.start(pack, new AbortController().signal, onLost);
  await vi.waitFor(() => expect(seen.sent).toHaveLength(1));
  seen.tell({ kind: "done", id: 1, value: undefined } as unknown as FromWorker);
  const embedder = await starting;
  seen.tell({ kind: "alive", lock: (await lockOfLife())! });
  const asked = embedder.embed(["a"]);
  locks.end();
  await expect(asked).rejects.toThrow(/browser has ended the model/);
  expect(onLost).toHaveBeenCalledOnce();
});
