// Messages between the page and the engine's worker.
import type { Profile, Stats as FastStats, TablePlace } from "gemma4-web/fast";
import type { AppConfig, ChatCompletionChunk, ChatCompletionRequestStreaming } from "@mlc-ai/web-llm";

/** A drafter that is downloaded: where its files lie in the caches, and what they are. */
export interface StoredDrafter {
  url: string;
  files: Record<string, { sha256: string }>;
}

export type ToWorker =
  /**
   * `fast`: with gemma4-web between the client and the device, and with `drafter` several tokens a step. `library`: which
   * one the page chose, and why. `table`: where the page wants the table of per-layer embeddings, and what that saves;
   * undefined where there is none. `beginnings`: bytes of the device, and of the
   * browser's storage, for those of prompts, and what those in storage depend on.
   */
  | {
      kind: "start";
      model: string;
      config: AppConfig;
      fast: boolean;
      drafter: StoredDrafter | undefined;
      library: { name: string; why: string } | undefined;
      table: { place: TablePlace; savedBytes: number } | undefined;
      beginnings: { bytes: number; version: string } | undefined;
    }
  /** `sent`: when the person sent the message, by `now` of speed.ts; `chat`: the id of its conversation. */
  | { kind: "reply"; id: number; sent: number; chat: string; request: ChatCompletionRequestStreaming }
  /** Beginnings of these chats' prompts are not to be written any more; without chats, nobody's. */
  | { kind: "forget"; chats: string[] | undefined }
  /** `text`: what is asked while the kernels are timed. */
  | { kind: "profile"; id: number; text: string }
  | { kind: "stop" };

export type FromWorker =
  /** The worker has this lock as long as it lives. */
  | { kind: "alive"; lock: string }
  | { kind: "progress"; share: number; text: string }
  | { kind: "started"; fast: FastStats }
  /**
   * `at`: milliseconds since `sent`; with the usage, `drafted`: tokens of the reply that took no step of their own; `kept`: of the
   * prompt, those that were copied from what is kept of an earlier one.
   */
  | { kind: "chunk"; id: number; at: number; drafted: number; kept: number; chunk: ChatCompletionChunk }
  | { kind: "end"; id: number; fast: FastStats }
  /** Beginnings of prompts are not written to the browser's storage any more, and why. */
  | { kind: "unsaved"; text: string }
  | { kind: "profiled"; id: number; profile: Profile }
  /** A start or a reply failed; the client's errors are text. */
  | { kind: "failed"; id: number | undefined; text: string }
  /** The graphics device is gone, or reports an error: nothing works any more. */
  | { kind: "lost"; text: string };
