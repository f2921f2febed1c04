// Finding chats by their titles and by what was said in them.
import { textOf } from "./reply";
import { firstOf, titleOf, type Conversation } from "./transcript";

export interface Hit {
  conversation: Conversation;
  /** A piece of a message with what was looked for, where the title does not have it. */
  snippet?: string;
}

const BEFORE = 16;
const LONGEST_SNIPPET = 80;

interface Folded {
  key: string;
  title: string;
  texts: string[];
}

const known = new WeakMap<Conversation, Folded>();

/** The chats, in their order, that have every word of the query: any case, with or without accents. */
export function searchChats(conversations: readonly Conversation[], query: string): Hit[] {
  const words = fold(query).split(/\s+/).filter(Boolean);
  if (!words.length) return conversations.map((conversation) => ({ conversation }));
  return conversations.flatMap((conversation) => {
    const { title, texts } = foldedOf(conversation);
    if (!words.every((word) => title.includes(word) || texts.some((text) => text.includes(word)))) return [];
    const inText = words.find((word) => !title.includes(word));
    return [inText === undefined ? { conversation } : { conversation, snippet: snippetOf(conversation, inText) }];
  });
}

function fold(text: string): string {
  return text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
}

function foldedOf(conversation: Conversation): Folded {
  const key = `${conversation.updated} ${conversation.messages.length} ${conversation.title}`;
  const found = known.get(conversation);
  if (found?.key === key) return found;
  const folded = {
    key,
    title: fold(titleOf(conversation)),
    texts: conversation.messages.map((message) => fold(textOf(message))),
  };
  known.set(conversation, folded);
  return folded;
}

function snippetOf(conversation: Conversation, word: string): string | undefined {
  for (const message of conversation.messages) {
    const line = textOf(message)
      .split("\n")
      .find((each) => fold(each).includes(word));
    if (line === undefined) continue;
    const from = Math.max(0, fold(line).indexOf(word) - BEFORE); // near enough where folding changes lengths
    const start = from > 0 ? `…${line.slice(from)}` : line;
    return start.length > LONGEST_SNIPPET ? `${firstOf(start, LONGEST_SNIPPET)}…` : start;
  }
  return undefined;
}
