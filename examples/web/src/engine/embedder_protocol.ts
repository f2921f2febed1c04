// Messages between the page and the embedder's worker.
import type { AppConfig } from "@mlc-ai/web-llm";
import type { Ranked } from "../meaning/ranking";

/** Name of the worker, by which it knows what it is for. */
export const EMBEDDER = "embedder";

export type ToEmbedder =
  | { kind: "start"; id: number; model: string; config: AppConfig }
  /** Vectors of texts, one after the other. */
  | { kind: "embed"; id: number; texts: string[] }
  /** The vectors that are searched from now on, one after the other. */
  | { kind: "hold"; id: number; vectors: Float32Array }
  /** The nearest of them to a text. */
  | { kind: "find"; id: number; text: string; count: number };

/** What each message is answered with. */
export interface Answers {
  start: undefined;
  embed: Float32Array[];
  hold: undefined;
  find: Ranked[];
}

export type FromEmbedder =
  /** The worker has this lock as long as it lives. */
  | { kind: "alive"; lock: string }
  | { kind: "done"; id: number; value: Answers[keyof Answers] }
  /** The client's errors are text. */
  | { kind: "failed"; id: number; text: string }
  /** The graphics device is gone, or reports an error: nothing works any more. */
  | { kind: "lost"; text: string };
