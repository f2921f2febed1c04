// Conversations as a browser's storage gives them back, damaged ones too.
import { describe, expect, it } from "vitest";
import { searchChats } from "../src/chat/search";
import {
  afterReload,
  isConversation,
  newConversation,
  newReply,
  newUserMessage,
  titleOf,
  wellFormed,
  type Conversation,
} from "../src/chat/transcript";

function chat(): Conversation {
  const stats = { promptTokens: 3, contextTokens: 9, tokens: 6, firstTokenSeconds: 0.25 };
  const rounds = [{ opened: "", raw: "b", results: [{ name: "calculator", text: "27" }] }];
  return {
    ...newConversation(1000),
    messages: [newUserMessage("Who?"), { ...newReply(), state: "done", rounds, stats }],
  };
}

/** Puts a value at every place of a JSON value, one after the other. */
function* changed(value: unknown, odd: unknown): Generator<unknown> {
  if (typeof value !== "object" || value === null) return;
  for (const [key, inner] of Object.entries(value)) {
    const put = (each: unknown) => (Array.isArray(value) ? value.with(Number(key), each) : { ...value, [key]: each });
    yield put(odd);
    for (const each of changed(inner, odd)) yield put(each);
  }
}

describe("a conversation that was kept", () => {
  it("comes back as it was", () => {
    const made = chat();
    expect(wellFormed(structuredClone(made))).toEqual(made);
  });

  it("has values of the page's own kinds only, whatever is damaged", () => {
    let read = 0;
    for (const odd of [undefined, null, 0, -1.5, "x", true, [], {}, [null]]) {
      for (const each of changed(chat(), odd)) {
        if (!isConversation(each)) continue;
        read++;
        const found = afterReload(wellFormed(each));
        expect([typeof found.title, typeof found.system, typeof found.tools]).toEqual(["string", "string", "boolean"]);
        expect(found.forgotten).toBeGreaterThanOrEqual(0);
        expect(searchChats([found], "who 27")).toBeDefined();
        for (const message of found.messages) {
          expect(typeof message.id).toBe("string");
          if (message.role === "user") continue;
          for (const round of message.rounds) expect(round.opened + round.raw).not.toContain("undefined");
          expect(message.stats?.firstTokenSeconds.toFixed(1) ?? "").not.toContain("NaN");
          expect(message.stats?.tokensPerSecond?.toFixed(1) ?? "").not.toContain("NaN");
        }
      }
    }
    expect(read).toBeGreaterThan(100);
  });

  it("has a title without signs that turn others, and without halves of characters", () => {
    const made = { ...chat(), messages: [newUserMessage("\u202eabc\u2066 d\ne")] };
    expect(titleOf(made)).toBe("abc d e");
    made.messages = [newUserMessage(`${"a".repeat(47)}\u{1f600}${"b".repeat(50)}`)];
    expect(titleOf(made)).toBe(`${"a".repeat(47)}…`);
    expect(titleOf({ ...made, messages: [newUserMessage(" ".repeat(9000) + "late")] })).toBe("late");
  });
});
