// A package that embeds texts, in the stock client, in a worker that ends with it.
import { clientUrl } from "../download/cache";
import { storedLibrary } from "../download/download";
import type { Ranked } from "../meaning/ranking";
import { MANIFEST, type Package } from "../package/package";
import { type Answers, EMBEDDER, type FromEmbedder, type ToEmbedder } from "./embedder_protocol";
import { whenGone } from "./alive";
import { asUserError, ENDED_BY_BROWSER, EngineLost } from "./failures";

const MODEL_ID = "embedder";
/** `ModelType.embedding` of the client, which the page does not load for a number. */
const EMBEDDING = 1;
const AGAIN = "Start the search again (Settings, Search); the model is still downloaded.";

interface Waiting {
  resolve(value: unknown): void;
  reject(error: Error): void;
}

type Question<K extends keyof Answers> = Omit<Extract<ToEmbedder, { kind: K }>, "id">;

export class Embedder {
  private readonly waiting = new Map<number, Waiting>();
  private asked = 0;
  private ended: EngineLost | undefined;
  private readonly life = new AbortController();

  private constructor(
    private readonly worker: Worker,
    private readonly libraryUrl: string,
    /** Of the package: vectors of another version are others. */
    readonly version: string,
    private readonly onLost: (error: EngineLost) => void,
  ) {
    worker.onmessage = ({ data }: MessageEvent<FromEmbedder>) => this.hear(data);
    worker.onerror = ({ message }) => {
      if (message) console.error(message);
      this.lose(new EngineLost("The search by meaning ended with an error.", AGAIN));
    };
  }

  /** Hands a downloaded package to the client. */
  static async start(pack: Package, signal: AbortSignal, onLost: (error: EngineLost) => void): Promise<Embedder> {
    const libraryUrl = URL.createObjectURL(await storedLibrary(pack));
    const worker = new Worker(new URL("./worker.ts", import.meta.url), { type: "module", name: EMBEDDER });
    const embedder = new Embedder(worker, libraryUrl, pack.version, onLost);
    const stop = () => embedder.dispose();
    signal.addEventListener("abort", stop);
    try {
      signal.throwIfAborted();
      const record = {
        model: clientUrl(pack),
        model_id: MODEL_ID,
        model_lib: libraryUrl,
        model_manifest: MANIFEST,
        model_type: EMBEDDING,
      };
      const config = { cacheBackend: "cache" as const, model_list: [record] };
      await embedder.ask<"start">({ kind: "start", model: MODEL_ID, config });
      return embedder;
    } catch (error) {
      embedder.dispose();
      throw asUserError(error, true);
    } finally {
      signal.removeEventListener("abort", stop);
    }
  }

  /** Vectors of length 1, one for each text. */
  embed(texts: string[]): Promise<Float32Array[]> {
    return this.ask<"embed">({ kind: "embed", texts });
  }

  /** From now on these are searched, one vector after the other. */
  hold(vectors: Float32Array): Promise<undefined> {
    return this.ask<"hold">({ kind: "hold", vectors });
  }

  /** The nearest of the held vectors to a text, the nearest first. */
  find(text: string, count: number): Promise<Ranked[]> {
    return this.ask<"find">({ kind: "find", text, count });
  }

  /** Ends the worker, and with it all that it holds on the device. */
  dispose(): void {
    this.end(new EngineLost("The search by meaning was ended.", AGAIN));
  }

  private ask<K extends keyof Answers>(question: Question<K>): Promise<Answers[K]> {
    if (this.ended) return Promise.reject(this.ended);
    const id = ++this.asked;
    return new Promise<Answers[K]>((resolve, reject) => {
      this.waiting.set(id, { resolve: resolve as (value: unknown) => void, reject });
      this.worker.postMessage({ ...question, id });
    });
  }

  private hear(message: FromEmbedder): void {
    if (message.kind === "lost") {
      this.lose(new EngineLost(`The graphics device was lost: ${message.text}`, AGAIN));
      return;
    }
    if (message.kind === "alive") {
      whenGone(message.lock, this.life.signal, () => this.lose(new EngineLost(ENDED_BY_BROWSER, AGAIN)));
      return;
    }
    const waiting = this.waiting.get(message.id);
    this.waiting.delete(message.id);
    if (message.kind === "done") waiting?.resolve(message.value);
    else waiting?.reject(asUserError(message.text));
  }

  private lose(error: EngineLost): void {
    if (this.ended) return;
    this.end(error);
    this.onLost(error);
  }

  private end(error: EngineLost): void {
    if (this.ended) return;
    this.ended = error;
    for (const { reject } of this.waiting.values()) reject(error);
    this.waiting.clear();
    this.life.abort();
    this.worker.terminate();
    URL.revokeObjectURL(this.libraryUrl);
  }
}
