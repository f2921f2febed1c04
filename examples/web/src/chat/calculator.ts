// The calculator tool's arithmetic: a small parser of its own, so that nothing of what a model writes
// is ever run as code.
//
//   sum     = product (("+" | "-") product)*
//   product = power (("*" | "/" | "%") power)*        % is the remainder
//   power   = ("+" | "-") power | atom ["^" power]    -2^2 is -4, 2^3^2 is 2^9
//   atom    = number | name | name "(" sum ("," sum)* ")" | "(" sum ")"

/** What is wrong with an expression, in words for the model. */
export class CalculatorError extends Error {}

const CONSTANTS: Record<string, number> = { pi: Math.PI, e: Math.E };
const FUNCTIONS: Record<string, { least: number; most: number; apply: (...values: number[]) => number }> = {
  abs: { least: 1, most: 1, apply: Math.abs },
  sqrt: { least: 1, most: 1, apply: Math.sqrt },
  round: { least: 1, most: 1, apply: Math.round },
  floor: { least: 1, most: 1, apply: Math.floor },
  ceil: { least: 1, most: 1, apply: Math.ceil },
  exp: { least: 1, most: 1, apply: Math.exp },
  ln: { least: 1, most: 1, apply: Math.log },
  log: { least: 1, most: 1, apply: Math.log10 },
  sin: { least: 1, most: 1, apply: Math.sin },
  cos: { least: 1, most: 1, apply: Math.cos },
  tan: { least: 1, most: 1, apply: Math.tan },
  min: { least: 1, most: 64, apply: Math.min },
  max: { least: 1, most: 64, apply: Math.max },
};
const MOST_CHARACTERS = 500;
const DEEPEST = 50;
const TOKEN = /\s*(?:(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)|([A-Za-z]+)|(\*\*|[-+*/%^(),]))/y;

type Token = { kind: "number"; value: number } | { kind: "name" | "sign"; text: string };

/**
 * The value of an expression.
 *
 * Throws CalculatorError for anything that is no expression, and for a result that is no finite number.
 */
export function calculate(expression: string): number {
  if (expression.length > MOST_CHARACTERS) {
    throw new CalculatorError(`longer than ${MOST_CHARACTERS} characters`);
  }
  const parser = new Parser(tokens(expression));
  const value = parser.all();
  if (!Number.isFinite(value)) throw new CalculatorError("the result is not a number");
  return value;
}

/** A value as a person writes it: without the last digits' noise of binary fractions. */
export function formatNumber(value: number): string {
  return String(Number(value.toPrecision(15)));
}

function tokens(expression: string): Token[] {
  // Signs that models like to write.
  const text = expression.replaceAll("×", "*").replaceAll("÷", "/").replaceAll("−", "-").trimEnd();
  const found: Token[] = [];
  TOKEN.lastIndex = 0;
  for (let at = 0; at < text.length; at = TOKEN.lastIndex) {
    const match = TOKEN.exec(text);
    if (!match) throw new CalculatorError(`cannot read \`${text.slice(at).trim().slice(0, 12)}\``);
    const [, number, name, sign] = match;
    if (number !== undefined) found.push({ kind: "number", value: Number(number) });
    else if (name !== undefined) found.push({ kind: "name", text: name.toLowerCase() });
    else found.push({ kind: "sign", text: sign === "**" ? "^" : sign! });
  }
  return found;
}

class Parser {
  private at = 0;
  private depth = 0;

  constructor(private readonly tokens: Token[]) {}

  all(): number {
    const value = this.sum();
    if (this.at < this.tokens.length) throw new CalculatorError(`\`${this.here()}\` is not expected`);
    return value;
  }

  private sum(): number {
    let value = this.product();
    for (;;) {
      if (this.take("+")) value += this.product();
      else if (this.take("-")) value -= this.product();
      else return value;
    }
  }

  private product(): number {
    let value = this.power();
    for (;;) {
      if (this.take("*")) value *= this.power();
      else if (this.take("/")) value = divide(value, this.power());
      else if (this.take("%")) value = remainder(value, this.power());
      else return value;
    }
  }

  private power(): number {
    if (++this.depth > DEEPEST) throw new CalculatorError("too deeply nested");
    try {
      if (this.take("+")) return this.power();
      if (this.take("-")) return -this.power();
      const base = this.atom();
      return this.take("^") ? base ** this.power() : base;
    } finally {
      this.depth--;
    }
  }

  private atom(): number {
    const token = this.tokens[this.at];
    if (token?.kind === "number") {
      this.at++;
      return token.value;
    }
    if (token?.kind === "name") {
      this.at++;
      return this.named(token.text);
    }
    if (this.take("(")) {
      const value = this.sum();
      this.expect(")");
      return value;
    }
    throw new CalculatorError(token ? `\`${this.here()}\` is not expected` : "the expression is incomplete");
  }

  private named(name: string): number {
    if (!this.take("(")) {
      if (Object.hasOwn(CONSTANTS, name)) return CONSTANTS[name]!;
      throw new CalculatorError(`\`${name}\` is not known`);
    }
    if (!Object.hasOwn(FUNCTIONS, name)) throw new CalculatorError(`\`${name}\` is not known`);
    const known = FUNCTIONS[name]!;
    const values = [this.sum()];
    while (this.take(",")) values.push(this.sum());
    this.expect(")");
    if (values.length < known.least || values.length > known.most) {
      throw new CalculatorError(`\`${name}\` does not take ${values.length} values`);
    }
    return known.apply(...values);
  }

  private take(sign: string): boolean {
    const token = this.tokens[this.at];
    const fits = token?.kind === "sign" && token.text === sign;
    if (fits) this.at++;
    return fits;
  }

  private expect(sign: string): void {
    if (!this.take(sign)) throw new CalculatorError(`\`${sign}\` is missing`);
  }

  private here(): string {
    const token = this.tokens[this.at]!;
    return token.kind === "number" ? String(token.value) : token.text;
  }
}

function divide(value: number, by: number): number {
  if (by === 0) throw new CalculatorError("division by zero");
  return value / by;
}

function remainder(value: number, by: number): number {
  if (by === 0) throw new CalculatorError("division by zero");
  return value % by;
}
