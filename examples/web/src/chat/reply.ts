// A reply's text as the model writes it, taken apart: reasoning, tool calls, and the answer itself.
import { parseCalls } from "./call_reader";
import { CALL_CLOSE, CALL_OPEN, type ToolCall } from "./tool_syntax";
import type { Message } from "./transcript";

export const CHANNEL_OPEN = "<|channel>";
export const CHANNEL_CLOSE = "<channel|>";
export const REASONING = `${CHANNEL_OPEN}thought\n`;

export type Part =
  | { kind: "answer"; text: string }
  | { kind: "reasoning"; text: string; open: boolean }
  | { kind: "call"; text: string; call: ToolCall | undefined; open: boolean };

const MARKS = [CHANNEL_OPEN, CALL_OPEN];

/**
 * Splits a reply, finished or not.
 *
 * While it is being written (`streaming`), a beginning that may become a marker is held back, so that
 * `<|chan` never flashes up in the answer.
 */
export function splitReply(raw: string, streaming = false): Part[] {
  const parts: Part[] = [];
  const next = new Map(MARKS.map((mark) => [mark, raw.indexOf(mark)]));
  for (let from = 0; from < raw.length; ) {
    const [at, mark] = firstOf(raw, from, next);
    if (at < 0) {
      const rest = raw.slice(from);
      pushAnswer(parts, streaming ? withoutPartialMark(rest) : rest);
      break;
    }
    pushAnswer(parts, raw.slice(from, at));
    const close = mark === CHANNEL_OPEN ? CHANNEL_CLOSE : CALL_CLOSE;
    const begin = at + mark.length;
    const end = raw.indexOf(close, begin);
    const open = end < 0;
    let text = open ? raw.slice(begin) : raw.slice(begin, end);
    if (open && streaming) text = withoutPartialMark(text, [close]);
    if (mark === CHANNEL_OPEN) parts.push({ kind: "reasoning", text: reasoningText(text), open });
    else parts.push(...callParts(text, open));
    from = open ? raw.length : end + close.length;
  }
  return parts.filter((part) => part.kind !== "reasoning" || part.open || part.text !== "");
}

/** What stands between two marks: one call or several, or text that is none. */
function callParts(text: string, open: boolean): Part[] {
  const calls = open ? [] : parseCalls(text);
  if (!calls.length) return [{ kind: "call", text, call: undefined, open }];
  return calls.map((call) => ({ kind: "call", text, call, open }));
}

/** What stays of a reply when it becomes history: the template drops reasoning and trims. */
export function withoutReasoning(raw: string): string {
  return raw
    .split(CHANNEL_CLOSE)
    .map((piece) => piece.split(CHANNEL_OPEN)[0]!)
    .join("")
    .trim();
}

/** The answer alone, for the clipboard. */
export function answerText(raw: string): string {
  return splitReply(raw)
    .filter((part) => part.kind === "answer")
    .map((part) => part.text)
    .join("")
    .trim();
}

/** Text of a message: a question as it is, a reply without reasoning and calls. */
export function textOf(message: Message): string {
  if (message.role === "user") return message.text;
  return message.rounds
    .map((round) => answerText(round.opened + round.raw))
    .filter(Boolean)
    .join("\n\n");
}

/** The calls that a finished reply asks for. */
export function callsOf(raw: string): ToolCall[] {
  return splitReply(raw).flatMap((part) => (part.kind === "call" && part.call ? [part.call] : []));
}

function pushAnswer(parts: Part[], text: string): void {
  if (text.trim() || (text && parts.at(-1)?.kind === "answer")) parts.push({ kind: "answer", text });
}

/** The channel's name is its first line, and no part of the reasoning. */
function reasoningText(text: string): string {
  const line = text.indexOf("\n");
  return (line < 0 ? "" : text.slice(line + 1)).trim();
}

/** The first mark from a place on. `next` keeps where each comes next, so that the text is looked through once. */
function firstOf(text: string, from: number, next: Map<string, number>): [number, string] {
  let best = -1;
  let found = "";
  for (const [mark, known] of next) {
    const at = known >= 0 && known < from ? text.indexOf(mark, from) : known;
    next.set(mark, at);
    if (at >= 0 && (best < 0 || at < best)) [best, found] = [at, mark];
  }
  return [best, found];
}

function withoutPartialMark(text: string, marks: string[] = MARKS): string {
  const longest = Math.max(...marks.map((mark) => mark.length)) - 1;
  for (let length = Math.min(longest, text.length); length > 0; length--) {
    const tail = text.slice(-length);
    if (marks.some((mark) => mark.startsWith(tail))) return text.slice(0, -length);
  }
  return text;
}
