import { describe, expect, it } from "vitest";
import { Fields } from "../src/package/json_fields";
import { areGemmas, GEMMA, readDifference, readTurns } from "../src/package/turns";

const fields = (value: unknown) => Fields.parse(new TextEncoder().encode(JSON.stringify(value)), "a file");

describe("readTurns", () => {
  const conv_template = {
    system_template: "<|turn>system\n{system_message}",
    roles: { user: "<turn|>\n<|turn>user\n", assistant: "<turn|>\n<|turn>model\n" },
    role_empty_sep: "",
  };

  it("reads Gemma's, and takes them where a package has none", () => {
    expect(readTurns(fields({ conv_template, first_user: "<|turn>user\n" }))).toEqual(GEMMA);
    expect(readTurns(fields({ conv_template: { role_empty_sep: "x" } }))).toEqual({ ...GEMMA, replyOpening: "x" });
    expect(areGemmas({ ...GEMMA, replyOpening: "x" })).toBe(true);
  });

  it("knows what follows a system message without a role", () => {
    const folded = { ...conv_template, system_template: "U{system_message}\n\n", add_role_after_system_message: false };
    const turns = readTurns(fields({ conv_template: folded, first_user: "U" }));
    expect([turns.system, turns.firstUser, areGemmas(turns)]).toEqual([["U", "\n\n"], "U", false]);
  });

  it("names a field that is no text", () => {
    expect(() => readTurns(fields({ conv_template, first_user: 3 }))).toThrow(/first_user/);
  });
});

describe("readDifference", () => {
  it("is the first one", () => {
    expect(readDifference(fields({}))).toBe("");
    const conversation = [{ dialogue: "two turns", template: "a", client: "b" }, { dialogue: "x" }];
    expect(readDifference(fields({ conversation }))).toBe("two turns");
  });
});
