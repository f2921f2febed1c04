import { describe, expect, it } from "vitest";
import { searchChats } from "../src/chat/search";
import { newConversation, newReply, newUserMessage, type Conversation } from "../src/chat/transcript";

function chat(title: string, ...said: string[]): Conversation {
  const reply = (raw: string) => ({
    ...newReply(),
    state: "done" as const,
    rounds: [{ opened: "", raw, results: [] }],
  });
  return {
    ...newConversation(),
    title,
    messages: said.map((text, index) => (index % 2 ? reply(text) : newUserMessage(text))),
  };
}

const CHATS = [
  chat("Über Bäume", "Which trees?", "Birch\nand an old OAK, far behind many other words of this line"),
  chat("Cooking", "Soup?", "<|channel>thought\nleeks<channel|>Yes."),
];
const found = (query: string) => searchChats(CHATS, query).map(({ conversation }) => conversation.title);

describe("search", () => {
  it.each([
    ["", ["Über Bäume", "Cooking"]],
    ["  ", ["Über Bäume", "Cooking"]],
    ["uber", ["Über Bäume"]],
    ["BÄUME oak", ["Über Bäume"]],
    ["soup", ["Cooking"]],
    ["leeks", []], // reasoning
    ["oak soup", []],
    [".*", []],
  ])("%j", (query, titles) => expect(found(query)).toEqual(titles));

  it("shows where the words are, if not in the title", () => {
    expect(searchChats(CHATS, "oak")[0]?.snippet).toBe("and an old OAK, far behind many other words of this line");
    expect(searchChats(CHATS, "behind")[0]?.snippet).toMatch(/^….*behind/);
    expect(searchChats(CHATS, "baume")[0]?.snippet).toBeUndefined();
  });

  it("sees what was said or renamed since", () => {
    const one = chat("", "Hello", "Hi");
    expect(searchChats([one], "later")).toEqual([]);
    one.messages.push(newUserMessage("and later?"));
    expect(searchChats([one], "later")).toHaveLength(1);
    one.title = "Renamed";
    expect(searchChats([one], "renamed")).toHaveLength(1);
  });
});
