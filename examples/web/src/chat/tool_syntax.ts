// Gemma 4's own notation for tools: what its template writes, and what the model writes back.
//
//   <|tool>declaration:NAME{description:<|"|>..<|"|>,parameters:{...}}<tool|>
//   <|tool_call>call:NAME{city:<|"|>Rome<|"|>,days:2}<tool_call|>
//   <|tool_response>response:NAME{value:<|"|>..<|"|>}<tool_response|>
//
// Keys are bare and sorted, strings are between quote tokens without any escaping, numbers and
// booleans are bare.

export const QUOTE = '<|"|>';
export const CALL_OPEN = "<|tool_call>";
export const CALL_CLOSE = "<tool_call|>";
export const RESPONSE_OPEN = "<|tool_response>";
export const RESPONSE_CLOSE = "<tool_response|>";

export type Value = string | number | boolean | null | Value[] | { [key: string]: Value };

export interface ToolCall {
  name: string;
  args: { [key: string]: Value };
}

/** A parameter of a tool, as JSON schema names it. */
export interface Parameter {
  type: string;
  description: string;
}

export interface Declaration {
  name: string;
  description: string;
  parameters: Record<string, Parameter>;
  required: string[];
}

export function declare({ name, description, parameters, required }: Declaration): string {
  const properties = Object.keys(parameters)
    .sort()
    .map((key) => {
      const { type, description: text } = parameters[key]!;
      return `${key}:{description:${format(text)},type:${format(type.toUpperCase())}}`;
    });
  const schema = `{properties:{${properties.join(",")}},` + `required:${format(required)},type:${format("OBJECT")}}`;
  return `<|tool>declaration:${name}{description:${format(description)},parameters:${schema}}<tool|>`;
}

export function respond(name: string, result: string): string {
  return `${RESPONSE_OPEN}response:${name}{value:${format(result)}}${RESPONSE_CLOSE}`;
}

export function format(value: Value): string {
  // A quote token inside a string would end it: there is no escape for it.
  if (typeof value === "string") return QUOTE + value.replaceAll(QUOTE, '"') + QUOTE;
  if (Array.isArray(value)) return `[${value.map(format).join(",")}]`;
  if (value !== null && typeof value === "object") {
    const fields = Object.keys(value).sort();
    return `{${fields.map((key) => `${key}:${format(value[key]!)}`).join(",")}}`;
  }
  return String(value);
}

/** Reads the text between the call's markers; undefined if it is no call. */
export function parseCall(text: string): ToolCall | undefined {
  const head = /^\s*call:([\w.-]+)\s*/.exec(text);
  if (!head) return undefined;
  try {
    const reader = new Reader(text, head[0].length);
    const args = reader.value();
    if (!reader.done() || args === null || typeof args !== "object" || Array.isArray(args)) return undefined;
    return { name: head[1]!, args };
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
}

class Reader {
  private depth = 0;

  constructor(
    private readonly text: string,
    private at: number,
  ) {}

  done(): boolean {
    return this.text.slice(this.at).trim() === "";
  }

  value(): Value {
    if (++this.depth > 32) throw new SyntaxError("too deeply nested");
    try {
      if (this.take(QUOTE)) return this.until(QUOTE);
      if (this.take('"')) return this.until('"'); // some replies use ASCII quotes
      if (this.take("{")) return this.fields();
      if (this.take("[")) return this.items();
      return this.bare();
    } finally {
      this.depth--;
    }
  }

  private fields(): Value {
    const fields: Record<string, Value> = Object.create(null) as Record<string, Value>;
    if (this.take("}")) return fields;
    do {
      const name = /\s*"?([\w-]+)"?\s*:/y;
      name.lastIndex = this.at;
      const found = name.exec(this.text);
      if (!found) throw new SyntaxError("a key is missing");
      this.at = name.lastIndex;
      fields[found[1]!] = this.value();
    } while (this.take(","));
    this.expect("}");
    return fields;
  }

  private items(): Value[] {
    const items: Value[] = [];
    if (this.take("]")) return items;
    do items.push(this.value());
    while (this.take(","));
    this.expect("]");
    return items;
  }

  private bare(): Value {
    const word = /\s*([^\s,{}[\]]+)/y;
    word.lastIndex = this.at;
    const found = word.exec(this.text);
    if (!found) throw new SyntaxError("a value is missing");
    this.at = word.lastIndex;
    const text = found[1]!;
    if (text === "true" || text === "false") return text === "true";
    if (text === "null") return null;
    const number = Number(text);
    if (Number.isNaN(number)) throw new SyntaxError(`\`${text}\` is no value`);
    return number;
  }

  private until(end: string): string {
    const stop = this.text.indexOf(end, this.at);
    if (stop < 0) throw new SyntaxError("a string does not end");
    const text = this.text.slice(this.at, stop);
    this.at = stop + end.length;
    return text;
  }

  private take(sign: string): boolean {
    const start = this.at + (/^\s*/.exec(this.text.slice(this.at))?.[0].length ?? 0);
    if (!this.text.startsWith(sign, start)) return false;
    this.at = start + sign.length;
    return true;
  }

  private expect(sign: string): void {
    if (!this.take(sign)) throw new SyntaxError(`\`${sign}\` is missing`);
  }
}
