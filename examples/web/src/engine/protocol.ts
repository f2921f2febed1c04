// What the page and the engine's worker say to each other.
import type { AppConfig, ChatCompletionChunk, ChatCompletionRequestStreaming } from "@mlc-ai/web-llm";

export type ToWorker =
  | { kind: "start"; model: string; config: AppConfig }
  | { kind: "reply"; id: number; request: ChatCompletionRequestStreaming }
  | { kind: "stop" };

export type FromWorker =
  | { kind: "progress"; share: number; text: string }
  | { kind: "started" }
  | { kind: "chunk"; id: number; chunk: ChatCompletionChunk }
  | { kind: "end"; id: number }
  /** A start or a reply failed; the client's errors are text. */
  | { kind: "failed"; id: number | undefined; text: string }
  /** The graphics device is gone, or reports an error: nothing works any more. */
  | { kind: "lost"; text: string };
