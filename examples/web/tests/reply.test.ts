import { describe, expect, it } from "vitest";
import cases from "../../../tests/call_dialects.json";
import { parseCalls } from "../src/chat/call_reader";
import { answerText, callsOf, splitReply, withoutReasoning } from "../src/chat/reply";
import { declare, format, respond } from "../src/chat/tool_syntax";
import { runTool } from "../src/chat/tools";

interface Drift {
  why: string;
  text: string;
  arguments?: object | null;
  calls?: { name: string; arguments: object }[];
}

/** The one call of a text. */
function parseCall(text: string) {
  const calls = parseCalls(text);
  return calls.length === 1 ? calls[0] : undefined;
}

const CALL = '<|tool_call>call:calculator{expression:<|"|>8 + 19<|"|>}<tool_call|>';

describe("splitReply", () => {
  it("keeps reasoning apart from the answer", () => {
    expect(splitReply("<|channel>thought\nFirst.\n<channel|>Then.")).toEqual([
      { kind: "reasoning", text: "First.", open: false },
      { kind: "answer", text: "Then." },
    ]);
  });

  it("leaves out empty reasoning", () => {
    expect(splitReply("<|channel>thought\n<channel|>Yes.")).toEqual([{ kind: "answer", text: "Yes." }]);
  });

  it("never shows a part of a mark while a reply is written, whatever its pieces", () => {
    const raw = `<|channel>thought\nHm <b>\n<channel|>Let me see.${CALL}`;
    for (let end = 0; end <= raw.length; end++) {
      for (const part of splitReply(raw.slice(0, end), true)) {
        if (part.kind !== "call") expect(part.text).not.toMatch(/<\||\|>|<c|<$/);
      }
    }
  });

  it("gives back a `<` that was no mark", () => {
    expect(splitReply("a < b", true)).toEqual([{ kind: "answer", text: "a < b" }]);
    expect(splitReply("a <|", false)).toEqual([{ kind: "answer", text: "a <|" }]);
  });

  it("finds calls", () => {
    expect(callsOf(`Let me see.${CALL}${CALL}`)).toHaveLength(2);
    expect(callsOf(CALL)[0]).toEqual({ name: "calculator", args: { expression: "8 + 19" } });
    expect(callsOf("<|tool_call>call:calculator{expr")).toEqual([]);
  });

  it("drops reasoning from history as the template does", () => {
    expect(withoutReasoning("<|channel>thought\nA\n<channel|> B <|channel>thought\nC<channel|>D ")).toBe("B D");
    expect(answerText(`<|channel>thought\nA\n<channel|>B${CALL}C`)).toBe("BC");
  });
});

describe("the notation of tools", () => {
  it("reads every kind of value", () => {
    const text = 'call:f{a:<|"|>x{,}<|"|>,b:-2.5,c:[1,true,null],d:{e:false},f:{}}';
    expect(parseCall(text)).toEqual({
      name: "f",
      args: { a: "x{,}", b: -2.5, c: [1, true, null], d: { e: false }, f: {} },
    });
  });

  it.each(["", "call", "call:f{a:}", "call:f{a:[1", "call:f{a:1}x", 'call:f{a:<|"|>x, y:z}'])(
    "takes `%s` for no call",
    (text) => expect(parseCall(text)).toBeUndefined(),
  );

  it.each(cases as Drift[])("drift: $why", ({ text, arguments: args, calls }) => {
    const one = args ? [{ name: "f", arguments: args }] : [];
    const expected = (calls ?? one).map((call) => ({ name: call.name, args: call.arguments }));
    expect(parseCalls(text)).toEqual(expected);
  });

  it("shows and runs each of several calls between two marks", () => {
    const raw = "<|tool_call>call:f{a:1}call:g{b:2}<tool_call|>";
    expect(callsOf(raw).map(({ name }) => name)).toEqual(["f", "g"]);
    expect(splitReply(raw)).toHaveLength(2);
  });

  it("looks for no missing mark in a text that is too long", () => {
    expect(parseCall(`call:f{q:<|"|>${"x".repeat(2 ** 15)}}`)).toBeUndefined();
    expect(parseCall(`call:f{q:<|"|>${"x, }] ".repeat(200)},p:<|"|>x<|"|>}`)).toBeUndefined();
  });

  it("reads no number that would become another one", () => {
    for (const number of ["9007199254740993", "1e400", "1e-400"])
      expect(parseCall(`call:f{a:${number}}`)).toBeUndefined();
  });

  it("writes as the published template", () => {
    const parameters = { city: { type: "string", description: "City name" } };
    expect(declare({ name: "weather", description: "Now", parameters, required: ["city"] })).toBe(
      '<|tool>declaration:weather{description:<|"|>Now<|"|>,parameters:{properties:{city:{description:<|"|>City name<|"|>,' +
        'type:<|"|>STRING<|"|>}},required:[<|"|>city<|"|>],type:<|"|>OBJECT<|"|>}}<tool|>',
    );
    expect(respond("f", "27")).toBe('<|tool_response>response:f{value:<|"|>27<|"|>}<tool_response|>');
    expect(format({ b: 1, a: [true, null] })).toBe("{a:[true,null],b:1}");
  });

  it("lets no text end its own string", () => {
    expect(format('a<|"|>b')).toBe('<|"|>a"b<|"|>');
  });

  it("tells the model what is wrong with a call", () => {
    expect(runTool({ name: "calculator", args: { expression: "1/0" } })).toBe("error: division by zero");
    expect(runTool({ name: "calculator", args: {} })).toMatch(/^error: `expression`/);
    expect(runTool({ name: "shell", args: {} })).toMatch(/^error: there is no tool/);
  });
});

it.each(["<|channel>\nx<channel|>", "<|tool_call>x<tool_call|>", "<|tool_call>call:a{<tool_call|>"])(
  "%s over and over is split at once",
  (marks) => {
    const started = performance.now();
    expect(splitReply(marks.repeat(60_000))).toHaveLength(60_000);
    // A second alone, and machines are busy with other work.
    expect(performance.now() - started).toBeLessThan(20_000);
  },
  60_000,
);
