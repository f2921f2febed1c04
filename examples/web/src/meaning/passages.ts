// What can be found by its meaning: pieces of chats and of documents, short enough for one embedding each.
import { textOf } from "../chat/reply";
import { titleOf, type Conversation } from "../chat/transcript";

/** A text that somebody dropped into the page. */
export interface Document {
  id: string;
  name: string;
  text: string;
  added: number;
}

export interface Passage {
  text: string;
  /** Of the chat or the document. */
  title: string;
  /** The chat that it is from; undefined: it is from a document. */
  conversation?: string;
}

/** As many are kept, those of documents first and then of the latest chats. */
export const MOST_PASSAGES = 10_000;
const LONGEST = 600; // characters: some 150 tokens, of which one embedding can say something
const SHORTEST = 2; // nothing is found by a single letter

/** Cuts a text at its paragraphs, a long one at its sentences, a long sentence anywhere between words. */
export function split(text: string, longest = LONGEST): string[] {
  const passages: string[] = [];
  let begun = "";
  const end = () => {
    if (begun.length >= SHORTEST) passages.push(begun);
    begun = "";
  };
  for (const paragraph of text.split(/\n\s*\n/)) {
    for (const piece of piecesOf(paragraph.replace(/\s+/g, " ").trim(), longest)) {
      if (begun && begun.length + 1 + piece.length > longest) end();
      begun = begun ? `${begun} ${piece}` : piece;
    }
    end();
  }
  return passages;
}

function piecesOf(paragraph: string, longest: number): string[] {
  const sentences = paragraph.split(/(?<=[.!?…。！？])\s+/).filter(Boolean);
  return sentences.flatMap((sentence) => {
    const pieces: string[] = [];
    let rest = sentence;
    while (rest.length > longest) {
      const space = rest.lastIndexOf(" ", longest);
      const at = space > longest / 2 ? space : cutBefore(rest, longest);
      pieces.push(rest.slice(0, at).trimEnd());
      rest = rest.slice(at).trimStart();
    }
    return rest ? [...pieces, rest] : pieces;
  });
}

/** A place to cut at that parts no pair of surrogates. */
function cutBefore(text: string, at: number): number {
  const code = text.charCodeAt(at);
  return code >= 0xdc00 && code <= 0xdfff ? at - 1 : at;
}

/** The passages of all documents and chats, each text once. */
export function passagesOf(documents: readonly Document[], conversations: readonly Conversation[]): Passage[] {
  const found = new Map<string, Passage>();
  const add = (text: string, from: Omit<Passage, "text">): boolean => {
    for (const piece of split(text)) {
      if (found.size >= MOST_PASSAGES) return false;
      if (!found.has(piece)) found.set(piece, { text: piece, ...from });
    }
    return true;
  };
  for (const { name, text } of documents) if (!add(text, { title: name })) break;
  for (const conversation of conversations) {
    const from = { title: titleOf(conversation), conversation: conversation.id };
    if (!conversation.messages.every((message) => add(textOf(message), from))) break;
  }
  return [...found.values()];
}
