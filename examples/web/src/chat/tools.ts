// The tools that a conversation may offer to the model. There is one, and it runs in this page.
import { CalculatorError, calculate, formatNumber } from "./calculator";
import { declare, type Declaration, type ToolCall } from "./tool_syntax";

const CALCULATOR: Declaration = {
  name: "calculator",
  description: "Works out an arithmetic expression exactly. Use it for any calculation.",
  parameters: {
    expression: {
      type: "string",
      description: "For example (3 + 4) * 2.5 ^ 2, sqrt(2), 17 % 5. Functions: sqrt, abs, min, max, ln, log, exp",
    },
  },
  required: ["expression"],
};

/** The system turn's part that offers the tools. */
export const DECLARATIONS = declare(CALCULATOR);

/** Runs a call and returns what the model is given; a mistake in the call is reported to it, too. */
export function runTool({ name, args }: ToolCall): string {
  if (name !== CALCULATOR.name) return `error: there is no tool ${name}`;
  const expression = args["expression"];
  if (typeof expression !== "string" && typeof expression !== "number") {
    return "error: `expression` is missing";
  }
  try {
    return formatNumber(calculate(String(expression)));
  } catch (error) {
    if (error instanceof CalculatorError) return `error: ${error.message}`;
    throw error;
  }
}

/** A call in one line, for the page. */
export function describeCall({ name, args }: ToolCall): string {
  const expression = args["expression"];
  return `${name}(${expression === undefined ? JSON.stringify(args) : String(expression)})`;
}
