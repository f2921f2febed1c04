// Chats as files: written for keeping, and read with care, since a file may come from anywhere.
import { newId } from "../ids";
import { formatBytes, formatCount, MIB } from "../package/units";
import { UserError } from "../package/user_error";
import { cleanTitle, newReply, titleOf } from "./transcript";
import type { AssistantMessage, Attachment, Conversation, Message, ReplyState, Round, Stats } from "./transcript";
import type { UserMessage } from "./transcript";
import { readData } from "./transfer_media";

const SCHEMA = "gemma4-chats";
const VERSION = 1;
const LARGEST_BYTES = 100 * MIB;
const MOST_CHATS = 5_000;
const MOST_MESSAGES = 10_000; // of a chat
const MOST_ROUNDS = 1_000;
const MOST_MEDIA = 64; // of a message
const LONGEST_TEXT = 2_000_000; // characters
const LONGEST_CHAT = 4_000_000;
const STATES: ReplyState[] = ["writing", "done", "stopped", "cut", "interrupted"];
const NOTHING = "Nothing was imported. Choose a file that this page exported.";

export interface ChatFile {
  name: string;
  text: string;
}

/** Chats as a file: one of them, or many. */
export function toFile(conversations: readonly Conversation[], now = new Date()): ChatFile {
  const content = { schema: SCHEMA, schema_version: VERSION, exported: now.toISOString(), conversations };
  const text = `${JSON.stringify(content, undefined, 1)}\n`;
  const bytes = new Blob([text]).size;
  if (bytes > LARGEST_BYTES || conversations.length > MOST_CHATS) {
    throw new UserError(
      `The chats are more than one file can hold: ${formatCount(conversations.length)} with ${formatBytes(bytes)}.`,
      "Export them one by one, or delete some.",
    );
  }
  const day = now.toISOString().slice(0, 10);
  const [first] = conversations;
  const name = conversations.length === 1 && first ? `chat-${slug(titleOf(first))}` : "chats";
  return { name: `gemma4-${name}-${day}.json`, text };
}

/** A picture or sound of a chat that was read. */
export interface ReadMedium extends Attachment {
  blob: Blob;
}

/**
 * The chats of a file, with ids of their own; throws a UserError that names what is wrong with it, and where.
 *
 * `take` gets the bytes of their pictures and sounds, which nobody has decoded yet.
 */
export async function readChatFile(
  file: File,
  take: (medium: ReadMedium) => void = () => undefined,
): Promise<Conversation[]> {
  const fail = (what: string): never => {
    throw new UserError(`${file.name || "The file"} ${what}.`, NOTHING);
  };
  if (file.size > LARGEST_BYTES)
    fail(`has ${formatBytes(file.size)}; at most ${formatBytes(LARGEST_BYTES)} can be imported`);
  if (file.size === 0) fail("is empty");
  let data: unknown;
  try {
    data = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer()));
  } catch (error) {
    if (error instanceof SyntaxError) fail("is no JSON file, or ends too early");
    if (error instanceof TypeError) fail("is no text in UTF-8");
    fail(`cannot be read: ${(error as Error).message}`);
  }
  return new Reader(fail, take).chats(data);
}

/** Takes over what it knows, value by value; everything else of a file stays behind. */
class Reader {
  private characters = 0; // of the chat that is read

  constructor(
    private readonly fail: (what: string) => never,
    private readonly take: (medium: ReadMedium) => void,
  ) {}

  chats(data: unknown): Conversation[] {
    if (!isRecord(data) || data["schema"] !== SCHEMA) return this.fail("holds no chats of this page");
    const version = data["schema_version"];
    if (version !== VERSION)
      return this.fail(
        `is of version ${typeof version === "number" ? version : "unknown"}, and this page reads version ${VERSION}`,
      );
    const chats = this.list(data["conversations"], "conversations", MOST_CHATS);
    if (!chats.length) return this.fail("holds no chats");
    return chats.map((chat, index) => this.chat(chat, `conversations[${index}]`));
  }

  private chat(value: unknown, at: string): Conversation {
    const from = this.record(value, at);
    this.characters = 0;
    const messages = this.list(from["messages"], `${at}.messages`, MOST_MESSAGES);
    const read = messages.map((message, index) => this.message(message, index, `${at}.messages[${index}]`));
    if (read.at(-1)?.role === "user") read.push({ ...newReply(), state: "interrupted" });
    const now = Date.now();
    const created = Math.min(now, this.count(from["created"] ?? now, `${at}.created`));
    return {
      id: newId(),
      title: cleanTitle(this.text(from["title"] ?? "", `${at}.title`)),
      created,
      updated: Math.min(now, this.count(from["updated"] ?? created, `${at}.updated`)),
      system: this.text(from["system"] ?? "", `${at}.system`),
      thinking: this.flag(from["thinking"] ?? false, `${at}.thinking`),
      tools: this.flag(from["tools"] ?? false, `${at}.tools`),
      forgotten: this.forgotten(this.count(from["forgotten"] ?? 0, `${at}.forgotten`), read),
      messages: read,
    };
  }

  /** Questions and replies take turns, as the model's template has it. */
  private message(value: unknown, index: number, at: string): Message {
    const from = this.record(value, at);
    const role = index % 2 ? "assistant" : "user";
    if (from["role"] !== role) this.fail(`is damaged: ${at}.role should be ${role}`);
    const id = newId();
    if (role === "user") {
      const list = this.list(from["media"] ?? [], `${at}.media`, MOST_MEDIA);
      const media = list.map((medium, number) => this.medium(medium, `${at}.media[${number}]`));
      const text = this.text(from["text"], `${at}.text`);
      return { id, role, text, ...(media.length && { media }) } satisfies UserMessage;
    }
    const state = STATES.find((each) => each === from["state"]) ?? this.fail(`is damaged: ${at}.state is unknown`);
    const rounds = this.list(from["rounds"], `${at}.rounds`, MOST_ROUNDS);
    const stats = from["stats"] === undefined ? undefined : this.stats(from["stats"], `${at}.stats`);
    return {
      id,
      role,
      rounds: rounds.map((round, number) => this.round(round, `${at}.rounds[${number}]`)),
      state: state === "writing" ? "interrupted" : state,
      ...(stats && { stats }),
    } satisfies AssistantMessage;
  }

  private medium(value: unknown, at: string): Attachment {
    const from = this.record(value, at);
    const { kind } = from;
    if (kind !== "picture" && kind !== "sound") return this.fail(`is damaged: ${at}.kind is unknown`);
    const medium: Attachment = {
      id: newId(),
      kind,
      name: cleanTitle(this.text(from["name"], `${at}.name`)),
    };
    for (const key of ["width", "height", "seconds"] as const) {
      if (from[key] !== undefined) medium[key] = this.count(from[key], `${at}.${key}`);
    }
    try {
      const blob = readData(kind, from["type"], from["data"]);
      if (blob) this.take({ ...medium, blob });
    } catch (error) {
      this.fail(`is damaged: ${at}.${(error as Error).message}`);
    }
    return medium;
  }

  private round(value: unknown, at: string): Round {
    const from = this.record(value, at);
    const results = this.list(from["results"] ?? [], `${at}.results`, MOST_ROUNDS);
    return {
      opened: this.text(from["opened"] ?? "", `${at}.opened`),
      raw: this.text(from["raw"], `${at}.raw`),
      results: results.map((result, index) => {
        const { name, text } = this.record(result, `${at}.results[${index}]`);
        return {
          name: this.text(name, `${at}.results[${index}].name`),
          text: this.text(text, `${at}.results[${index}].text`),
        };
      }),
    };
  }

  private stats(value: unknown, at: string): Stats {
    const from = this.record(value, at);
    const number = (name: keyof Stats) => this.count(from[name], `${at}.${name}`);
    const given = (name: "keptTokens" | "tokensPerSecond" | "tokensPerStep") =>
      from[name] === undefined ? {} : { [name]: number(name) };
    return {
      promptTokens: number("promptTokens"),
      contextTokens: number("contextTokens"),
      tokens: number("tokens"),
      firstTokenSeconds: number("firstTokenSeconds"),
      ...given("keptTokens"),
      ...given("tokensPerSecond"),
      ...given("tokensPerStep"),
    };
  }

  /** What the model no longer sees ends before a question. */
  private forgotten(count: number, messages: Message[]): number {
    return messages[count]?.role === "user" ? count : 0;
  }

  private record(value: unknown, at: string): Record<string, unknown> {
    return isRecord(value) ? value : this.wrong(value, at, "an object");
  }

  private list(value: unknown, at: string, most: number): unknown[] {
    if (!Array.isArray(value)) return this.wrong(value, at, "a list");
    if (value.length > most)
      this.fail(`has ${formatCount(value.length)} entries in ${at}; at most ${formatCount(most)} can be imported`);
    return value;
  }

  private text(value: unknown, at: string): string {
    if (typeof value !== "string") return this.wrong(value, at, "text");
    if (value.length > LONGEST_TEXT) {
      this.fail(
        `has ${formatCount(value.length)} characters in ${at}; at most ${formatCount(LONGEST_TEXT)} can be imported`,
      );
    }
    this.characters += value.length;
    if (this.characters > LONGEST_CHAT) {
      this.fail(`has more than ${formatCount(LONGEST_CHAT)} characters in one chat, up to ${at}`);
    }
    return value.replace(/\p{Surrogate}/gu, "\ufffd"); // halves of characters, which no tokenizer takes
  }

  private flag(value: unknown, at: string): boolean {
    return typeof value === "boolean" ? value : this.wrong(value, at, "true or false");
  }

  private count(value: unknown, at: string): number {
    return typeof value === "number" && value >= 0 && value <= Number.MAX_SAFE_INTEGER
      ? value
      : this.wrong(value, at, "a number from 0");
  }

  private wrong(value: unknown, at: string, wanted: string): never {
    const found = value === undefined ? "is missing" : `is no ${wanted.replace(/^an? /, "")}`;
    return this.fail(`is damaged: ${at} ${found}`);
  }
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function slug(title: string): string {
  const words = title
    .normalize("NFKD")
    .replace(/[\u0300-\u036f]/g, "") // accents of Latin letters; the vowels of other scripts are marks, too
    .normalize("NFC")
    .replace(/[^\p{L}\p{M}\p{N}]+/gu, "-")
    .replace(/^-|-$/g, "")
    .toLowerCase();
  return [...words].slice(0, 40).join("").replace(/-$/, "") || "untitled";
}
