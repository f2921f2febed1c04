// The stock client, off the page's own thread. It also reports when the graphics device is gone, which
// the client only logs.
// Before the client, which it watches.
import {
  disable,
  keepBeginnings,
  lastingBeginnings,
  noteChoice,
  placeTable,
  profile,
  stats,
  useDrafter,
} from "gemma4-web/fast";
import { MLCEngine } from "@mlc-ai/web-llm";
import type { LastingBeginnings, TablePlace } from "gemma4-web/fast";
import { APPLICATION } from "../package/beginnings";
import { lockOfLife } from "./alive";
import { EMBEDDER } from "./embedder_protocol";
import { serveEmbeddings } from "./embeddings";
import type { FromWorker, StoredDrafter, ToWorker } from "./protocol";
import { now } from "./speed";

const PROFILED_TOKENS = 24;
/** Of beginnings that the first reply waits for: some thousand tokens, the last conversation's. All may take seconds. */
const AWAITED_BYTES = 128 << 20;
/** And no longer than so: storage may not answer, or another tab may have it. */
const AWAITED_MS = 10_000;
const engine = new MLCEngine({ logLevel: "WARN" });

/** Beginnings of prompts in the browser's storage, and when enough of those of earlier visits is on the device again. */
let lasting: LastingBeginnings | undefined;
let restored: Promise<void> | undefined;

function tell(message: FromWorker): void {
  postMessage(message);
}

const requestDevice = GPUAdapter.prototype.requestDevice;
GPUAdapter.prototype.requestDevice = async function (descriptor) {
  const device = await requestDevice.call(this, descriptor);
  void device.lost.then(({ reason, message }) => tell({ kind: "lost", text: message || reason }));
  device.addEventListener("uncapturederror", ({ error }) => tell({ kind: "lost", text: error.message }));
  return device;
};

/** The page has downloaded and checked the files; where one is gone, the model answers without drafts. */
async function useStored({ url, files }: StoredDrafter): Promise<void> {
  await useDrafter(url, {
    fetch: async (address) => {
      if (address === `${url}provenance.json`) return Response.json({ files });
      return (await caches.match(address)) ?? new Response(undefined, { status: 404 });
    },
  });
}

/** The page has chosen; where the place cannot be had, the table is loaded onto the device, and `stats` says why. */
async function place(url: string, { place, savedBytes }: { place: TablePlace; savedBytes: number }): Promise<void> {
  await placeTable(url, {
    place,
    needs: { neededBytes: 0, savedBytes },
    fetch: async (address) => (await caches.match(address)) ?? new Response(undefined, { status: 404 }),
  });
}

async function start(message: Extract<ToWorker, { kind: "start" }>): Promise<void> {
  const { model, config, fast, drafter, library, table, beginnings } = message;
  if (!fast) disable();
  if (library) noteChoice(library);
  try {
    engine.setAppConfig(config);
    keepBeginnings(fast && beginnings ? beginnings.bytes : 0);
    if (fast && table) await place(config.model_list[0]!.model, table);
    await engine.reload(model);
    if (fast && drafter) await useStored(drafter);
    if (fast && beginnings) await restore(config.model_list[0]!.model, beginnings.version);
    tell({ kind: "started", fast: stats() });
  } catch (error) {
    tell({ kind: "failed", id: undefined, text: String(error) });
  }
}

/** Begins to bring back what earlier visits have read; the first reply waits for what was used last. */
async function restore(url: string, version: string): Promise<void> {
  lasting = await lastingBeginnings(url, { application: APPLICATION, version });
  restored = new Promise<void>((enough) => {
    const all = lasting?.restore((bytes) => bytes >= AWAITED_BYTES && enough());
    const late = (error: unknown) => console.warn("beginnings of conversations stay in storage:", error);
    void Promise.resolve(all).catch(late).finally(enough);
    setTimeout(enough, AWAITED_MS);
  });
}

async function store(chat: string): Promise<void> {
  const problem = await lasting?.save(chat);
  if (problem !== undefined) tell({ kind: "unsaved", text: problem });
}

async function reply({ id, sent, chat, request }: Extract<ToWorker, { kind: "reply" }>): Promise<void> {
  await restored;
  lasting?.begin(chat);
  const before = stats();
  try {
    for await (const chunk of await engine.chat.completions.create(request)) {
      const { guessedSteps, keptTokens } = chunk.usage ? stats() : before; // not with every token
      const [drafted, kept] = [guessedSteps - before.guessedSteps, keptTokens - before.keptTokens];
      tell({ kind: "chunk", id, at: now() - sent, drafted, kept, chunk });
    }
    tell({ kind: "end", id, fast: stats() });
    await store(chat);
  } catch (error) {
    tell({ kind: "failed", id, text: String(error) });
  }
}

async function measure({ id, text }: Extract<ToWorker, { kind: "profile" }>): Promise<void> {
  const messages = [{ role: "user" as const, content: text }];
  const request = { messages, stream: true as const, temperature: 0, max_tokens: PROFILED_TOKENS, ignore_eos: true };
  try {
    const found = await profile(async () => {
      await engine.resetChat();
      for await (const chunk of await engine.chat.completions.create(request)) void chunk;
    });
    await engine.resetChat();
    tell({ kind: "profiled", id, profile: found });
  } catch (error) {
    tell({ kind: "failed", id, text: String(error) });
  }
}

function serveChats(): void {
  engine.setInitProgressCallback(({ progress, text }) => tell({ kind: "progress", share: progress, text }));
  self.onmessage = ({ data }: MessageEvent<ToWorker>) => {
    if (data.kind === "start") void start(data);
    else if (data.kind === "reply") void reply(data);
    else if (data.kind === "profile") void measure(data);
    else if (data.kind === "forget") lasting?.forget(data.chats);
    else engine.interruptGenerate();
  };
  void lockOfLife().then((lock) => lock && tell({ kind: "alive", lock }));
}

// One file for both: the client in it has six megabytes.
if (self.name === EMBEDDER) {
  disable();
  serveEmbeddings(engine);
} else serveChats();
