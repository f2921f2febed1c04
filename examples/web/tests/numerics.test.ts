// A package's numerics report: what is shown of it, and what is left alone.
import { describe, expect, it } from "vitest";
import { Fields } from "../src/package/json_fields";
import { NUMERICS, numericsLines, readNumerics } from "../src/package/numerics";

const MEASURES = { kl_mean: 0.01254, top1: 0.9125, perplexity: 12.34, reference_perplexity: 48_690 };

function report(change: Record<string, unknown> = {}) {
  return {
    schema: "gemma4_compile.numerics",
    schema_version: 2,
    passed: true,
    package: { bits_per_weight: 4.7125 },
    whole: { logits: MEASURES },
    texts: { chat: { whole: MEASURES }, script: { whole: { ...MEASURES, kl_mean: 0.00001 } } },
    ...change,
  };
}

function read(value: unknown) {
  return readNumerics(Fields.parse(new TextEncoder().encode(JSON.stringify(value)), NUMERICS));
}

describe("a numerics report", () => {
  it("is shown text by text, with the bits of a weight", () => {
    const { title, rows } = numericsLines(read(report())!);
    expect(title).toBe("Next to the checkpoint at 4.71 bits a weight");
    expect(rows).toEqual([
      ["Chat", "same next token 91.3 % · divergence 0.0125 · perplexity 12.3 (4.9e+4)"],
      ["Other scripts", "same next token 91.3 % · divergence 1.0e-5 · perplexity 12.3 (4.9e+4)"],
    ]);
  });

  it("of an earlier version has one text", () => {
    const { title, rows } = numericsLines(read(report({ schema_version: 1, texts: undefined, package: {} }))!);
    expect(title).toBe("Next to the checkpoint");
    expect(rows.map(([name]) => name)).toEqual(["A story"]);
  });

  it("says what failed", () => {
    expect(numericsLines(read(report({ passed: false }))!).title).toContain("outside of the recipe's bounds");
  });

  it("is left alone where it is of another version or no report", () => {
    for (const change of [
      { schema: "other" },
      { schema_version: 3 },
      { passed: "yes" },
      { texts: { chat: {} } },
      { texts: { chat: { whole: { ...MEASURES, top1: 2 } } } },
      { texts: [] },
      { package: { bits_per_weight: "4" } },
      { texts: {}, whole: {} },
    ]) {
      expect(read(report(change)), JSON.stringify(change)).toBeUndefined();
    }
    const { texts } = read(report({ texts: { chat: { whole: MEASURES }, ["\u202e"]: {}, ["__proto__"]: {} } }))!;
    expect(texts.map(({ name }) => name)).toEqual(["Chat"]);
  });
});
