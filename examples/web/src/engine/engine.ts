// A package in the stock client, in a worker that ends with the engine.
import type { Profile, Stats as FastStats } from "gemma4-web/fast";
import { SUBGROUP_MATRICES } from "gemma4-web/choose";
import type { ChatCompletionMessageParam } from "@mlc-ai/web-llm";
import { CONVERSATION_OVERRIDES } from "../chat/prompt";
import { clientUrl } from "../download/cache";
import { storedLibrary } from "../download/download";
import { MANIFEST, type Package, type Sampling } from "../package/package";
import { whenGone } from "./alive";
import { asUserError, ENDED_BY_BROWSER, EngineLost, RESTART } from "./failures";
import type { FromWorker, StoredDrafter, ToWorker } from "./protocol";
import { type Pace, ReplyClock } from "./speed";

const MODEL_ID = "gemma4";
/** What a profile asks: some ten tokens, as often as the context has room for. */
const PANGRAM = "The quick brown fox jumps over the lazy dog. ";
const MOST_PANGRAMS = 10;
const TOKENS_OF_PANGRAM = 64; // and the reply's: of a small vocabulary
// The client names what its device lacks, which may be less than the adapter offers.
const CHECKED_FEATURES = new Set(["shader-f16", SUBGROUP_MATRICES]);

export interface StartOptions {
  /** Tokens of context. */
  context: number;
  /** With gemma4-web between the client and the device. */
  fast: boolean;
  /** Draft tokens with the package's drafter, whose files are downloaded. */
  drafts: boolean;
  /** Ends the start, and the worker with it. */
  signal: AbortSignal;
  /** Is told, once, why beginnings of conversations are not kept for the next visit any more. */
  unsaved?: (why: string) => void;
}

export interface GenerationOptions extends Sampling {
  maxTokens: number | undefined;
  seed: number | undefined;
  /** The id of the conversation. */
  chat: string;
}

export interface Usage {
  promptTokens: number;
  /** Of them, those that were copied from what is kept of an earlier prompt. */
  keptTokens: number;
  /** Of the whole conversation, as it lies in the KV state. */
  contextTokens: number;
  tokens: number;
  pace: Pace;
  firstTokenSeconds: number;
}

export type Piece = { text: string } | { finish: string } | { usage: Usage };

/** Waits for the worker's messages about one start or one reply. */
interface Listener {
  hear(message: FromWorker): void;
  fail(error: Error): void;
}

export class Engine {
  /** What gemma4-web had done at the end of the last reply. */
  fast: FastStats | undefined;
  private listener: Listener | undefined;
  private replies = 0;
  private history: ChatCompletionMessageParam[] | undefined;
  private contextTokens = 0;
  private ended: EngineLost | undefined;
  private profiling: Promise<unknown> | undefined;
  private readonly life = new AbortController();

  private constructor(
    private readonly worker: Worker,
    private readonly libraryUrl: string,
    readonly contextLength: number,
    private readonly onLost: (error: EngineLost) => void,
    private readonly onUnsaved: ((why: string) => void) | undefined,
  ) {
    worker.onmessage = ({ data }: MessageEvent<FromWorker>) => this.hear(data);
    worker.onerror = ({ message }) => {
      if (message) console.error(message);
      this.lose(new EngineLost(message ? "The engine ended with an error." : "The engine cannot start.", RESTART));
    };
  }

  /** Hands a downloaded package to the client. `report` gets the share that is done and what it is. */
  static async start(
    pack: Package,
    { context, fast, drafts, signal, unsaved }: StartOptions,
    report: (share: number, text: string) => void,
    onLost: (error: EngineLost) => void,
  ): Promise<Engine> {
    // The checked bytes themselves: the client would ask a server on localhost again.
    const library = await storedLibrary(pack);
    signal.throwIfAborted();
    const libraryUrl = URL.createObjectURL(library);
    const worker = new Worker(new URL("./worker.ts", import.meta.url), { type: "module", name: "engine" });
    const engine = new Engine(worker, libraryUrl, context, onLost, unsaved);
    const stop = () => engine.dispose();
    signal.addEventListener("abort", stop);
    try {
      await engine.load(pack, fast, drafts ? storedDrafter(pack) : undefined, report);
      return engine;
    } catch (error) {
      engine.dispose();
      throw asUserError(error, true);
    } finally {
      signal.removeEventListener("abort", stop);
    }
  }

  private async load(
    pack: Package,
    fast: boolean,
    drafter: StoredDrafter | undefined,
    report: (share: number, text: string) => void,
  ): Promise<void> {
    const record = {
      model: clientUrl(pack),
      model_id: MODEL_ID,
      model_lib: this.libraryUrl,
      model_manifest: MANIFEST,
      required_features: pack.requirements.features.filter((feature) => CHECKED_FEATURES.has(feature)),
      overrides: { ...CONVERSATION_OVERRIDES, context_window_size: this.contextLength },
    };
    await this.listen(
      (resolve) => (message) => {
        if (message.kind === "progress") report(message.share, message.text);
        else if (message.kind === "started") {
          this.fast = message.fast;
          resolve();
        }
      },
      {
        kind: "start",
        model: MODEL_ID,
        fast,
        drafter,
        library: pack.choice,
        beginnings: pack.beginnings?.bytes
          ? { bytes: pack.beginnings.bytes, version: this.versionOf(pack) }
          : undefined,
        table: pack.table && { place: pack.table.place, savedBytes: pack.table.savedBytes },
        config: { cacheBackend: "cache", model_list: [record] },
      },
    );
  }

  /**
   * Streams a reply to `take`. `stop` ends it early; a lost device ends it with EngineLost.
   *
   * `sent`: since when one waits for its first token (`now` of speed.ts).
   */
  async reply(
    messages: ChatCompletionMessageParam[],
    options: GenerationOptions,
    sent: number,
    take: (piece: Piece) => void,
  ): Promise<void> {
    await this.profiling;
    const reused = this.history !== undefined && same(this.history, messages.slice(0, -1));
    this.history = undefined;
    const id = ++this.replies;
    let text = "";
    let finish = "";
    const clock = new ReplyClock();
    try {
      await this.listen(
        (resolve) => (message) => {
          if (!("id" in message) || message.id !== id) return;
          if (message.kind === "end") {
            this.fast = message.fast;
            resolve();
          }
          if (message.kind !== "chunk") return;
          if (message.chunk.choices.length) clock.hear(message.at);
          for (const piece of this.piecesOf(message, reused, finish, clock)) {
            if ("text" in piece) text += piece.text;
            if ("finish" in piece) finish = piece.finish;
            take(piece);
          }
        },
        { kind: "reply", id, sent, chat: options.chat, request: request(messages, options) },
      );
    } catch (error) {
      const failure = asUserError(error);
      if (failure instanceof EngineLost) this.lose(failure);
      throw failure;
    }
    // After any other end the client starts over with the whole conversation.
    if (finish === "stop") this.history = [...messages, { role: "assistant", content: text }];
  }

  /** Where the time of a prompt and of a token goes, by kernel. What was said is read again with the next message. */
  async profile(): Promise<Profile> {
    this.history = undefined;
    const id = ++this.replies;
    const text = PANGRAM.repeat(Math.min(MOST_PANGRAMS, Math.floor(this.contextLength / TOKENS_OF_PANGRAM)));
    let found: Profile | undefined;
    const listening = this.listen(
      (resolve) => (message) => {
        if (message.kind !== "profiled" || message.id !== id) return;
        found = message.profile;
        resolve();
      },
      { kind: "profile", id, text },
    );
    this.profiling = listening.catch(() => undefined);
    await listening;
    return found!;
  }

  stop(): void {
    this.send({ kind: "stop" });
  }

  /** Nothing of these chats is kept for the next visit any more; without chats, of none. */
  forget(chats?: string[]): void {
    this.send({ kind: "forget", chats });
  }

  /** Ends the worker, and with it all that it holds on the device. */
  dispose(): void {
    this.ended ??= new EngineLost("The model was unloaded.", RESTART);
    this.listener?.fail(this.ended);
    this.life.abort();
    this.worker.terminate();
    URL.revokeObjectURL(this.libraryUrl);
  }

  /** What keys and values of a prompt depend on, besides the device. */
  private versionOf({ digest, library }: Package): string {
    return JSON.stringify([digest, library, this.contextLength]);
  }

  private async listen(
    listener: (resolve: () => void) => (message: FromWorker) => void,
    message: ToWorker,
  ): Promise<void> {
    if (this.ended) throw this.ended;
    await new Promise<void>((resolve, fail) => {
      this.listener = { hear: listener(resolve), fail };
      this.send(message);
    }).finally(() => (this.listener = undefined));
  }

  private hear(message: FromWorker): void {
    if (message.kind === "lost") this.lose(new EngineLost(`The graphics device was lost: ${message.text}`, RESTART));
    else if (message.kind === "alive") {
      whenGone(message.lock, this.life.signal, () => this.lose(new EngineLost(ENDED_BY_BROWSER, RESTART)));
    } else if (message.kind === "unsaved") this.onUnsaved?.(message.text);
    else if (message.kind === "failed") this.listener?.fail(asUserError(message.text, message.id === undefined));
    else this.listener?.hear(message);
  }

  private lose(error: EngineLost): void {
    if (this.ended) return;
    this.ended = error;
    this.listener?.fail(error);
    this.onLost(error);
  }

  private send(message: ToWorker): void {
    if (!this.ended) this.worker.postMessage(message);
  }

  private piecesOf(
    { chunk: { choices, usage }, drafted, kept }: Extract<FromWorker, { kind: "chunk" }>,
    reused: boolean,
    finish: string,
    clock: ReplyClock,
  ): Piece[] {
    const pieces: Piece[] = [];
    const [choice] = choices;
    if (choice?.delta.content) pieces.push({ text: choice.delta.content });
    if (choice?.finish_reason) pieces.push({ finish: choice.finish_reason });
    if (usage) {
      const { prompt_tokens, completion_tokens } = usage;
      // The client counts the stop token, which is neither shown nor forwarded.
      const tokens = completion_tokens - (finish === "stop" ? 1 : 0);
      this.contextTokens = (reused ? this.contextTokens : 0) + prompt_tokens + tokens;
      pieces.push({
        usage: {
          promptTokens: prompt_tokens,
          keptTokens: kept,
          contextTokens: this.contextTokens,
          tokens,
          pace: clock.pace(completion_tokens, drafted),
          firstTokenSeconds: clock.firstTokenSeconds,
        },
      });
    }
    return pieces;
  }
}

function storedDrafter(pack: Package): StoredDrafter | undefined {
  if (!pack.drafter.size) return undefined;
  return {
    url: clientUrl(pack),
    files: Object.fromEntries(pack.files.map(({ name, sha256 }) => [name, { sha256 }])),
  };
}

function request(messages: ChatCompletionMessageParam[], options: GenerationOptions) {
  return {
    messages,
    stream: true as const,
    stream_options: { include_usage: true },
    temperature: options.temperature,
    top_p: options.topP,
    repetition_penalty: options.repetitionPenalty,
    frequency_penalty: options.frequencyPenalty,
    presence_penalty: options.presencePenalty,
    max_tokens: options.maxTokens ?? null,
    seed: options.seed ?? null,
  };
}

function same(history: ChatCompletionMessageParam[], messages: ChatCompletionMessageParam[]): boolean {
  return (
    history.length === messages.length && history.every((message, index) => sameMessage(message, messages[index]!))
  );
}

function sameMessage(a: ChatCompletionMessageParam, b: ChatCompletionMessageParam): boolean {
  if (a.role !== b.role || nameOf(a) !== nameOf(b)) return false;
  return typeof a.content === "object"
    ? JSON.stringify(a.content) === JSON.stringify(b.content)
    : a.content === b.content;
}

function nameOf(message: ChatCompletionMessageParam): string | undefined {
  return message.role === "user" ? message.name : undefined;
}
