import { describe, expect, it } from "vitest";
import { calculate, CalculatorError, formatNumber } from "../src/chat/calculator";

describe("calculate", () => {
  it.each([
    ["8 + 19", 27],
    ["2 + 3 * 4", 14],
    ["(2 + 3) * 4", 20],
    ["10 - 3 - 2", 5],
    ["100 / 5 / 2", 10],
    ["2 ^ 3 ^ 2", 512],
    ["2 ** 10", 1024],
    ["-2 ^ 2", -4],
    ["2 ^ -1", 0.5],
    ["--3", 3],
    ["17 % 5", 2],
    ["1.5e3 + .5", 1500.5],
    ["sqrt(2) ^ 2", 2.0000000000000004],
    ["max(1, min(5, 3), 2)", 3],
    ["6 × 7 ÷ 2 − 1", 20],
    ["ln(e)", 1],
    ["round(pi * 100) / 100", 3.14],
  ])("%s", (expression, value) => expect(calculate(expression)).toBe(value));

  it.each([
    "",
    "1 +",
    "(1",
    "1)",
    "2 3",
    "1 / 0",
    "5 % 0",
    "sqrt(-1)",
    "10 ^ 999",
    "sqrt()",
    "sqrt(1, 2)",
    "1 ; 2",
    "()",
  ])("refuses `%s`", (expression) => expect(() => calculate(expression)).toThrow(CalculatorError));

  it.each(["alert(1)", "constructor", "constructor(1)", "__proto__", "toString()", "globalThis"])(
    "knows nothing of the page: `%s`",
    (expression) => expect(() => calculate(expression)).toThrow(/not known|not expected|cannot read/),
  );

  it("does not let anybody wait or overflow the stack", () => {
    expect(() => calculate("(".repeat(200) + "1")).toThrow(/deeply/);
    expect(() => calculate("-".repeat(200) + "1")).toThrow(/deeply/);
    expect(() => calculate("1+".repeat(400) + "1")).toThrow(/longer/);
  });

  it("writes numbers as people do", () => {
    expect(formatNumber(0.1 + 0.2)).toBe("0.3");
    expect(formatNumber(27)).toBe("27");
  });
});
