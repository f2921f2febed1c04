// From an address to a model that embeds texts, beside the one that chats: what both need, the download, the search.
import { newId } from "./ids";
import type { Session } from "./chat/session";
import { isKept, missingBytes } from "./download/cache";
import { download } from "./download/download";
import { Embedder } from "./engine/embedder";
import { type Document, passagesOf } from "./meaning/passages";
import { type Found, MeaningSearch } from "./meaning/search";
import { MeaningStore } from "./meaning/store";
import { packageUrl } from "./package/address";
import { findDevice } from "./package/device";
import { choose } from "./package/libraries";
import { EMBEDDINGS, type Package, readPackage } from "./package/package";
import { type Finding, judge, neededMemory } from "./package/requirements";
import { formatBytes } from "./package/units";
import { UserError } from "./package/user_error";

export type MeaningState =
  | { kind: "none" }
  | { kind: "busy"; text: string }
  /** What both models need; waits for the person. */
  | { kind: "check"; pack: Package; findings: Finding[] }
  | { kind: "ready"; title: string };

export interface MeaningEvents {
  state(state: MeaningState): void;
  failed(error: unknown): void;
}

const MOST_FOUND = 8;
const LARGEST_DOCUMENT = 4 * 2 ** 20;

export class MeaningLoader {
  private pack: Package | undefined;
  private abort = new AbortController();
  private attempts = 0;
  /** Ends when what was begun last writes no files any more. */
  private running: Promise<unknown> = Promise.resolve();
  private embedder: Embedder | undefined;
  private search: MeaningSearch | undefined;

  private constructor(
    private readonly session: Session,
    private readonly store: MeaningStore,
    private readonly events: MeaningEvents,
  ) {}

  static async open(session: Session, events: MeaningEvents): Promise<MeaningLoader> {
    return new MeaningLoader(session, await MeaningStore.open(), events);
  }

  /** Starts the package of the last visit, where it is downloaded: nothing is fetched unasked. */
  async resume(): Promise<void> {
    const { embedder } = this.session.settings;
    if (!embedder) return;
    if (!(await isKept(embedder))) return this.session.changeSettings({ embedderBytes: 0 });
    await this.attempt(async () => {
      const { pack, findings } = await this.look(embedder);
      if ((await missingBytes(pack)) === 0 && findings.every(({ kind }) => kind === "fits")) await this.load();
      else {
        this.session.changeSettings({ embedderBytes: 0 }); // the chat's model has no other beside it
        this.events.state({ kind: "none" });
      }
    });
  }

  /** Reads a package and shows what it needs beside the chat's. */
  async check(address: string): Promise<void> {
    await this.attempt(async () => {
      const { pack, findings } = await this.look(packageUrl(address, document.baseURI));
      this.events.state({ kind: "check", pack, findings });
    });
  }

  /** The person agreed to the download. */
  async start(): Promise<void> {
    await this.attempt(async () => {
      await this.load();
      if (!this.search) return; // it was ended meanwhile
      const { url, contextLength } = this.pack!;
      this.session.changeSettings({ embedder: url, embedderBytes: neededMemory(this.pack!, contextLength) });
    });
  }

  /** Ends the model, and forgets that it was wanted. */
  stop(): void {
    this.attempts++;
    this.session.changeSettings({ embedder: "", embedderBytes: 0 });
    this.end();
    this.events.state({ kind: "none" });
  }

  /** The files of a package, or of all, are about to be removed: ends when this tab uses none of them any more. */
  async removing(url?: string): Promise<void> {
    if (url !== undefined && url !== this.pack?.url && url !== this.session.settings.embedder) return;
    this.stop();
    await this.running;
  }

  get isReady(): boolean {
    return this.search !== undefined;
  }

  /** What is nearest to a text in its meaning, among documents and chats. */
  async find(text: string, report: (done: number, all: number) => void): Promise<Found[]> {
    if (!this.search) return [];
    const passages = passagesOf(await this.store.documents(), this.session.conversations);
    return this.search.find(passages, text, MOST_FOUND, report);
  }

  documents(): Promise<Document[]> {
    return this.store.documents();
  }

  /** All files, or none of them. */
  async addDocuments(files: readonly File[]): Promise<void> {
    const documents = await Promise.all(files.map(readDocument));
    for (const document of documents) await this.store.addDocument(document);
  }

  async removeDocument(id: string): Promise<void> {
    await this.store.removeDocument(id);
    await this.tidy();
  }

  /** Vectors are kept with their texts, which go with their chats and documents. */
  async tidy(): Promise<void> {
    const kept = await this.store.texts();
    if (kept.length === 0) return;
    const passages = passagesOf(await this.store.documents(), this.session.conversations);
    const texts = new Set(passages.map(({ text }) => text));
    await this.store.forget(kept.filter(({ text }) => !texts.has(text)));
  }

  private async look(url: string): Promise<{ pack: Package; findings: Finding[] }> {
    this.end();
    this.events.state({ kind: "busy", text: "Looking at the package…" });
    const device = await findDevice(false); // the stock client alone
    const { pack } = await choose(await readPackage(url, () => true, EMBEDDINGS), device, undefined);
    this.pack = pack;
    const { pack: chat, engine, settings } = this.session;
    const context = engine?.contextLength ?? chat?.contextLength ?? 0;
    const beside = chat ? neededMemory(chat, context) : 0;
    const missing = await missingBytes(pack);
    return { pack, findings: judge(pack, device, pack.contextLength, settings.allowedMemory, missing, beside) };
  }

  private async load(): Promise<void> {
    const pack = this.pack!;
    const { signal } = this.abort;
    await download(
      pack,
      ({ checkedBytes, downloadedBytes, totalBytes }) => {
        const done = `${formatBytes(checkedBytes + downloadedBytes)} of ${formatBytes(totalBytes)}`;
        if (!signal.aborted) this.events.state({ kind: "busy", text: `Downloading ${pack.title}: ${done}` });
      },
      signal,
    );
    this.events.state({ kind: "busy", text: "Starting the model…" });
    this.embedder = await Embedder.start(pack, signal, (error) => {
      this.end();
      this.events.state({ kind: "none" });
      this.events.failed(error);
    });
    this.search = new MeaningSearch(this.embedder, pack.prompts, this.store);
    this.events.state({ kind: "ready", title: pack.title });
  }

  private end(): void {
    this.abort.abort();
    this.abort = new AbortController();
    this.embedder?.dispose();
    this.embedder = this.search = undefined;
  }

  private async attempt(action: () => Promise<void>): Promise<void> {
    const begun = ++this.attempts;
    const running = action();
    this.running = running.catch(() => undefined);
    try {
      await running;
    } catch (error) {
      if (begun !== this.attempts) return; // it was ended, by the person or by what was begun after it
      this.end();
      this.events.state({ kind: "none" });
      this.events.failed(error);
    }
  }
}

async function readDocument(file: File): Promise<Document> {
  if (file.size > LARGEST_DOCUMENT) {
    throw new UserError(
      `${file.name} has ${formatBytes(file.size)}, and a document has ${formatBytes(LARGEST_DOCUMENT)} at most.`,
      "Cut it into several files.",
    );
  }
  let text: string;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    throw new UserError(`${file.name} is no text file.`, "Save it as text (UTF-8) and add that.");
  }
  return { id: newId(), name: file.name, text, added: Date.now() };
}
