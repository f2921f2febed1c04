import { describe, expect, it } from "vitest";
import { toMessages } from "../src/chat/prompt";
import { GEMMA } from "../src/package/turns";
import { afterReload, forgetOldest, newConversation, newReply, newUserMessage, titleOf } from "../src/chat/transcript";
import type { AssistantMessage, Conversation, UserMessage } from "../src/chat/transcript";

function reply(...raws: string[]): AssistantMessage {
  return { ...newReply(), state: "done", rounds: raws.map((raw) => ({ opened: "", raw, results: [] })) };
}

function conversation(...texts: string[]): Conversation {
  const made = newConversation(0);
  for (const [index, text] of texts.entries()) made.messages.push(index % 2 ? reply(text) : newUserMessage(text));
  made.messages.push(newReply());
  return made;
}

/** What the client forwards: the messages one after the other. */
function prompt(of: Conversation, opening = ""): string {
  return toMessages(of, { ...GEMMA, replyOpening: opening })
    .map((message) => message.content as string)
    .join("");
}

describe("toMessages", () => {
  it("is the template's prompt over several turns", () => {
    expect(prompt(conversation(" Hi there ", "Hello.", "Bye"))).toBe(
      "<|turn>user\nHi there<turn|>\n<|turn>model\nHello.<turn|>\n<|turn>user\nBye<turn|>\n<|turn>model\n",
    );
  });

  it("writes the turns of another template, with what it says by itself", () => {
    const turns = {
      system: ["<|im_start|>system\n", "<|im_end|>\n<|im_start|>user\n"] as [string, string],
      firstUser: "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n",
      user: "<|im_end|>\n<|im_start|>user\n",
      model: "<|im_end|>\n<|im_start|>assistant\n",
      replyOpening: "Sure",
    };
    const made = conversation("A", "B", "C");
    const rest =
      "A<|im_end|>\n<|im_start|>assistant\nB<|im_end|>\n<|im_start|>user\nC<|im_end|>\n<|im_start|>assistant\nSure";
    const text = () =>
      toMessages(made, turns)
        .map(({ content }) => content as string)
        .join("");
    expect(text()).toBe(turns.firstUser + rest);
    made.system = "S";
    expect(text()).toBe(`<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n${rest}`);
  });

  it("opens a system turn for a system prompt, thinking or tools, and not otherwise", () => {
    const made = conversation("Hi");
    made.system = " Be brief. ";
    made.thinking = true;
    expect(prompt(made)).toBe("<|turn>system\n<|think|>\nBe brief.<turn|>\n<|turn>user\nHi<turn|>\n<|turn>model\n");
    Object.assign(made, { system: " ", thinking: false, tools: true });
    expect(prompt(made)).toMatch(
      /^<\|turn>system\n<\|tool>declaration:calculator\{[\s\S]*<tool\|><turn\|>\n<\|turn>user\n/,
    );
  });

  it("opens the new reply with empty reasoning where the model's template does, and no earlier one", () => {
    const opening = "<|channel>thought\n<channel|>";
    const made = conversation("A", "B", "C");
    expect(prompt(made, opening)).toBe(
      `<|turn>user\nA<turn|>\n<|turn>model\nB<turn|>\n<|turn>user\nC<turn|>\n<|turn>model\n${opening}`,
    );
    made.thinking = true;
    expect(prompt(made, opening)).not.toContain(opening);
  });

  it("drops earlier reasoning", () => {
    expect(prompt(conversation("A", "<|channel>thought\nHm\n<channel|>B", "C"))).not.toContain("Hm");
  });

  it("goes on in the same turn after a tool, reasoning kept until the turn ends", () => {
    const made = conversation("8 + 19?");
    const last = made.messages.at(-1) as AssistantMessage;
    const results = [{ name: "calculator", text: "27" }];
    last.rounds = [
      { opened: "", raw: "<|channel>thought\nHm\n<channel|>CALL", results },
      { opened: "<|channel>thought\n", raw: "", results: [] },
    ];
    expect(prompt(made)).toBe(
      "<|turn>user\n8 + 19?<turn|>\n<|turn>model\n<|channel>thought\nHm\n<channel|>CALL" +
        '<|tool_response>response:calculator{value:<|"|>27<|"|>}<tool_response|><|channel>thought\n',
    );
    last.rounds[1]!.raw = "Easy.\n<channel|>27.";
    made.messages.push(newUserMessage("Thanks"), newReply());
    expect(prompt(made)).toBe(
      "<|turn>user\n8 + 19?<turn|>\n<|turn>model\nCALL" +
        '<|tool_response>response:calculator{value:<|"|>27<|"|>}<tool_response|>27.' +
        "<turn|>\n<|turn>user\nThanks<turn|>\n<|turn>model\n",
    );
  });

  it("puts pictures and sounds between a turn's opening and its text", () => {
    const made = conversation("What is this?", "A cat.", " And this? ", "A dog.", "Thanks");
    made.system = "S";
    const ask = (index: number, ...ids: string[]) => {
      const message = made.messages[index] as UserMessage;
      message.media = ids.map((id) => ({ id, kind: "picture", name: id }));
    };
    ask(0, "a", "b");
    ask(2, "c", "gone");
    const parts = new Map(
      ["a", "b", "c"].map((id) => [
        id,
        { type: "image_url" as const, image_url: { url: `data:image/png;base64,${id}` } },
      ]),
    );
    const [first, , second, , third] = toMessages(made, GEMMA, parts);
    expect(first).toEqual({
      role: "user",
      name: "<|turn>system\nS<turn|>\n<|turn>user\n",
      content: [parts.get("a"), parts.get("b"), { type: "text", text: "What is this?<turn|>\n<|turn>model\n" }],
    });
    expect(second).toEqual({
      role: "user",
      name: "<turn|>\n<|turn>user\n",
      content: [parts.get("c"), { type: "text", text: "And this?<turn|>\n<|turn>model\n" }],
    });
    expect(third).toEqual({ role: "user", content: "<turn|>\n<|turn>user\nThanks<turn|>\n<|turn>model\n" });
    // A package that takes none gets the words alone.
    expect(prompt(made)).toMatch(/^<\|turn>system\nS<turn\|>\n<\|turn>user\nWhat is this\?<turn\|>/);
  });

  it("puts the time before each frame of a video, as the processor does", () => {
    const made = conversation("What happens?", "Rain.", "Thanks");
    const frame = (id: string, seconds: number) => ({ id, kind: "picture" as const, name: id, seconds });
    (made.messages[0] as UserMessage).media = [
      { id: "a", kind: "picture", name: "a" },
      frame("b", 0),
      frame("c", 61.9),
      frame("gone", 100),
      frame("d", 3725),
      { id: "e", kind: "sound", name: "e", seconds: 2 },
    ];
    const parts = new Map(
      ["a", "b", "c", "d", "e"].map((id) => [
        id,
        { type: "image_url" as const, image_url: { url: `data:image/png;base64,${id}` } },
      ]),
    );
    const [first, second, third, fourth, , thanks] = toMessages(made, GEMMA, parts);
    const text = (words: string) => ({ type: "text", text: words });
    expect(first).toEqual({ role: "user", name: "<|turn>user\n", content: [parts.get("a"), text("00:00 ")] });
    expect(second).toEqual({ role: "user", content: [parts.get("b"), text(" 01:01 ")] });
    expect(third).toEqual({ role: "user", content: [parts.get("c"), text(" 62:05 ")] });
    expect(fourth).toEqual({
      role: "user",
      content: [parts.get("d"), parts.get("e"), text("What happens?<turn|>\n<|turn>model\n")],
    });
    expect(thanks).toEqual({ role: "user", content: "<turn|>\n<|turn>user\nThanks<turn|>\n<|turn>model\n" });
    // Alone it stands behind the opening of the turn.
    const [alone] = toMessages(made, GEMMA, new Map([["b", parts.get("b")!]]));
    expect(alone).toMatchObject({ name: "<|turn>user\n00:00 " });
  });

  it("leaves out what was forgotten, and keeps the system turn", () => {
    const made = conversation("A", "B", "C", "D", "E");
    made.system = "S";
    expect(forgetOldest(made)).toBe(true);
    expect(prompt(made)).toMatch(/^<\|turn>system\nS<turn\|>\n<\|turn>user\n[CE]/);
    while (forgetOldest(made));
    expect(prompt(made)).toBe("<|turn>system\nS<turn|>\n<|turn>user\nE<turn|>\n<|turn>model\n");
  });
});

describe("a conversation", () => {
  it("is named by its first question, cut at a word", () => {
    expect(titleOf(newConversation())).toBe("New chat");
    const title = titleOf(conversation("word ".repeat(30)));
    expect(title).toMatch(/^(word )+word…$/);
    expect(title.length).toBeLessThan(50);
  });

  it("has no reply in work after a reload", () => {
    const made = afterReload(conversation("Hi"));
    expect((made.messages.at(-1) as AssistantMessage).state).toBe("interrupted");
  });
});
