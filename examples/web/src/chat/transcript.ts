// A conversation as it is kept: plain data, the same in memory and in IndexedDB.
import { newId } from "../ids";

/**
 * A picture or a sound of a message. Its bytes are kept beside the conversations, under its id.
 *
 * Frames of a video are pictures with a time.
 */
export interface Attachment {
  id: string;
  kind: "picture" | "sound";
  name: string;
  /** Of a picture, in pixels. */
  width?: number;
  height?: number;
  /** Of a sound: how long it is. Of a frame: its time from the beginning of the video. */
  seconds?: number;
}

export interface UserMessage {
  id: string;
  role: "user";
  text: string;
  media?: Attachment[];
}

/** One stretch of generation, and what the tools answered after it. */
export interface Round {
  /** Put in front of the reply by the prompt, and part of it: opened reasoning. */
  opened: string;
  raw: string;
  results: { name: string; text: string }[];
}

/**
 * writing: now; done: ended by itself; stopped: by the person; cut: a limit of tokens;
 * interrupted: by something that went wrong.
 */
export type ReplyState = "writing" | "done" | "stopped" | "cut" | "interrupted";

export interface Stats {
  promptTokens: number;
  /** Of prompts, tokens that were copied from what is kept of an earlier one. */
  keptTokens?: number;
  /** Of the conversation up to the end of the reply. */
  contextTokens: number;
  tokens: number;
  /** By the clock; none of a single token. */
  tokensPerSecond?: number;
  /** Where a drafter drafted some. */
  tokensPerStep?: number;
  firstTokenSeconds: number;
}

export interface AssistantMessage {
  id: string;
  role: "assistant";
  rounds: Round[];
  state: ReplyState;
  stats?: Stats;
}

export type Message = UserMessage | AssistantMessage;

export interface Conversation {
  id: string;
  title: string;
  created: number;
  updated: number;
  system: string;
  thinking: boolean;
  tools: boolean;
  /** Messages that the model no longer gets to see, counted from the first. */
  forgotten: number;
  messages: Message[];
}

export function newConversation(now = Date.now()): Conversation {
  return {
    id: newId(),
    title: "",
    created: now,
    updated: now,
    system: "",
    thinking: false,
    tools: false,
    forgotten: 0,
    messages: [],
  };
}

export function newUserMessage(text: string, media: Attachment[] = []): UserMessage {
  return { id: newId(), role: "user", text, ...(media.length && { media }) };
}

/** Pictures and sounds of a message; none where what was kept of them is damaged. */
export function mediaOf(message: Message): Attachment[] {
  if (message.role !== "user" || !Array.isArray(message.media)) return [];
  return message.media.filter((each) => typeof each?.id === "string");
}

/** Whether a picture is one of a video. */
export function isFrame({ kind, seconds }: Attachment): boolean {
  return kind === "picture" && seconds !== undefined;
}

/** The ids of all pictures and sounds of a conversation. */
export function mediaIdsOf({ messages }: Conversation): string[] {
  return messages.flatMap(mediaOf).map(({ id }) => id);
}

export function newReply(): AssistantMessage {
  return { id: newId(), role: "assistant", rounds: [], state: "writing" };
}

const LONGEST_TITLE = 48;
const LONGEST_NAME = 120;

/** The first question, cut at a word. */
export function titleOf(conversation: Conversation): string {
  if (conversation.title) return conversation.title;
  const first = conversation.messages.find((message) => message.role === "user");
  const text = cleanTitle(first?.text.trimStart().slice(0, 10 * LONGEST_TITLE) ?? "");
  const [attached] = first ? mediaOf(first) : [];
  if (!text && attached) return isFrame(attached) ? "A video" : attached.kind === "picture" ? "A picture" : "A sound";
  if (!text) return "New chat";
  if (text.length <= LONGEST_TITLE) return text;
  return `${firstOf(text, LONGEST_TITLE).replace(/\s\S*$/, "")}…`;
}

/** The beginning of a text, without the half of a character at its end. */
export function firstOf(text: string, length: number): string {
  return text.slice(0, length).replace(/[\ud800-\udbff]$/, "");
}

/** A name that a person gave, on one line, without signs that would turn the text around it. */
export function cleanTitle(text: string): string {
  const line = text
    .replace(/[\u202a-\u202e\u2066-\u2069]/g, "")
    .replace(/[\s\p{Cc}]+/gu, " ")
    .trim();
  return [...line].slice(0, LONGEST_NAME).join("");
}

/** Whether what was kept can be shown: a browser's storage may be damaged, or another version's. */
export function isConversation(value: unknown): value is Conversation {
  const { id, messages } = (value ?? {}) as Partial<Conversation>;
  const isMessage = (message: Message) =>
    message?.role === "user" ? typeof message.text === "string" : Array.isArray(message?.rounds);
  return typeof id === "string" && Array.isArray(messages) && messages.every(isMessage);
}

/** The same without values of another kind than the page's own. */
export function wellFormed(kept: Conversation): Conversation {
  const own = newConversation();
  for (const [name, value] of Object.entries(own)) {
    if (typeof kept[name as keyof Conversation] !== typeof value) Object.assign(kept, { [name]: value });
  }
  if (!Number.isInteger(kept.forgotten) || kept.forgotten < 0) kept.forgotten = 0;
  for (const message of kept.messages) {
    if (typeof message.id !== "string") message.id = newId();
    if (message.role === "user") continue;
    message.role = "assistant";
    message.rounds = message.rounds.filter((round) => typeof round?.raw === "string").map(wholeRound);
    if (typeof message.state !== "string") message.state = "interrupted";
    if (!isStats(message.stats)) delete message.stats;
  }
  return kept;
}

function wholeRound({ opened, raw, results }: Round): Round {
  const whole = Array.isArray(results) ? results : [];
  return {
    opened: typeof opened === "string" ? opened : "",
    raw,
    results: whole.filter((each) => typeof each?.name === "string" && typeof each.text === "string"),
  };
}

function isStats(stats: Stats | undefined): boolean {
  if (typeof stats !== "object" || stats === null) return false;
  const { promptTokens, contextTokens, tokens, firstTokenSeconds } = stats;
  const isNumber = (value: unknown) => typeof value === "number";
  return (
    [promptTokens, contextTokens, tokens, firstTokenSeconds].every(isNumber) &&
    Object.values(stats).every(isNumberOrNone)
  );
}

function isNumberOrNone(value: unknown): boolean {
  return value === undefined || typeof value === "number";
}

/** What a reload finds of a reply that was being written: it is over. */
export function afterReload(conversation: Conversation): Conversation {
  for (const message of conversation.messages) {
    if (message.role === "assistant" && message.state === "writing") message.state = "interrupted";
  }
  return conversation;
}

/** Brings a conversation up to what was kept of it; messages that it has stay the same objects. */
export function mergeInto(conversation: Conversation, kept: Conversation): void {
  const known = new Map(conversation.messages.map((message) => [message.id, message]));
  const messages = kept.messages.map((message) => Object.assign(known.get(message.id) ?? message, message));
  Object.assign(conversation, kept, { messages });
}

/** Leaves out the older half of what the model still sees; whole exchanges only. */
export function forgetOldest(conversation: Conversation): boolean {
  const asked = conversation.messages.flatMap((message, index) =>
    message.role === "user" && index > conversation.forgotten ? [index] : [],
  );
  const next = asked[Math.floor(asked.length / 2)];
  if (next === undefined) return false;
  conversation.forgotten = next;
  return true;
}
