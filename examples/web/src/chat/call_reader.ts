// Reads calls, in Gemma's own form or in one that drifts from it where one reading is certain; which these are is in
// docs/compatibility.md and, case by case, in tests/call_dialects.json, which the Python reader is held to as well.
import { COMMENT, fromJson, fromPython, isOneText, NUMBER, toNumber, WORDS } from "./call_values";
import { QUOTE, type ToolCall, type Value } from "./tool_syntax";

type Fields = { [key: string]: Value };

const MAX_DEPTH = 32;
/** What the search for a missing quote token may take. */
const [MOST_LETTERS, MOST_PLACES, MOST_VALUES] = [2 ** 15, 256, 20_000];
const KEY_FOLLOWS = /\s*[A-Za-z_$@][\w.$@-]*\s*(?::(?!=)|=(?![=>]))/y;
const HEAD = /\s*call\s*:\s*([^\s{}()[\],'"=]+)\s*(?=[{(])/y;
const HEAD_WITHOUT_CALL = /\s*(?!call\b)([A-Za-z_][\w./-]*)\s*(?=[{(])/y;
const KEY = /[^\s{}[\],:='"]+(?: +[^\s{}[\],:='"]+)*/y;
const SEPARATOR = /:(?!=)|=(?![=>])/y;
const DOUBLE = /"((?:[^"\\]|\\.)*)"/sy;
const SINGLE = /'((?:[^'\\]|\\.|(?<=[\p{L}\p{N}_])'(?=[\p{L}\p{N}_]))*)'/suy;
// Python's long strings and JavaScript's templates, as far as they hold no escape and no value.
const LONG = /("{3}|'{3})((?:(?!\1)[^\\])*)\1/suy;
const TEMPLATE = /()`((?:(?!\$\{)[^`\\])*)`(?!`)/suy;
/** The call's own braces around an object in braces. */
const TWICE = /\{\s*(?=\{)/y;
/** Before an object that names the call. */
const NO_HEAD = /\s*call\s*:\s*(?=\{)/y;
// Neither an address nor the end of a sentence; a colon after it announces what did not come.
const NAME_ALONE = /^\s*call\s*:\s*(?!\w+:\/\/)([A-Za-z_](?:[\w./:-]*\w)?):?\s*$/;
/** Between two calls. */
const BETWEEN = /[ \t]*[,;\n\r]/y;
const FENCE = /^\s*(`{1,3})(?:\w+(?=\n))?/;
/** As after `call:`. */
const NAME = /^[^\s{}()[\],'"=]+$/;
const MOST_BRACES = 3; // that a call may have at its end and not at its beginning
const NAMES = ["name", "function", "tool", "tool_name", "function_name", "action"];
const ARGUMENTS = ["arguments", "parameters", "args", "input", "tool_input", "tool_args", "action_input"];
const WRAPPERS = ["tool_calls", "tool_call", "function_call"];
const KINDS: unknown[] = ["function", "function_call", "tool_call", "tool_use"];
const LABELS = ["id", "call_id", "index"];
// A Windows path, the name of a shared folder, or a regular expression's word boundary.
const NO_ESCAPES = /^(?:[A-Za-z]:\\(?!\\)|\\\\\w|(?:[^\\]|\\[^bf])*\\[bf])/;
// Backslashes before what is no escape in JSON nor in Python: they are a regular expression's.
const NO_ESCAPE_AT_ALL = /^(?:[^\\]|\\[^"'\\/abfnrtuvxUN0-7\n])*$/;
/** Reads the text between the marks of calls; none if it is no call, or not certain what it says. */
export function parseCalls(marked: string): ToolCall[] {
  const text = unfenced(marked);
  const alone = NAME_ALONE.exec(text);
  if (alone) return [{ name: alone[1]!, args: {} }];
  return read(new Reader(text, true)) ?? withBracesLess(text) ?? withQuoteMore(text) ?? [];
}

/** The text without the marks of Markdown around all of it. */
function unfenced(text: string): string {
  const [opening, mark] = FENCE.exec(text) ?? ["", ""];
  const end = text.trimEnd();
  if (!mark || !end.endsWith(mark) || text.length < 2 * opening.length) return text;
  return end.slice(opening.length, -mark.length);
}

/** The reading without braces that were closed at the end and not opened. */
function withBracesLess(text: string): ToolCall[] | undefined {
  let rest = text.trimEnd();
  for (let count = 0; count < MOST_BRACES && rest.endsWith("}"); count++) {
    rest = rest.slice(0, -1).trimEnd();
    const calls = read(new Reader(rest));
    if (calls) return calls;
  }
  return undefined;
}

function read(reader: Reader): ToolCall[] | undefined {
  try {
    return reader.whole();
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
}

/** The one reading that a quote token more gives, at the beginning or the end of a string. */
function withQuoteMore(text: string): ToolCall[] | undefined {
  const pieces = text.split(QUOTE);
  if (pieces.length % 2 === 1 || text.length > MOST_LETTERS) return undefined;
  const reader = new Reader(text + QUOTE);
  read(reader);
  const places = [...reader.starts, ...reader.strings.flatMap(([from, to]) => endsWithin(text, from, to))];
  if (places.length > MOST_PLACES || places.length * reader.starts.length > MOST_VALUES) return undefined;
  const found = new Map<string, ToolCall[]>();
  for (const place of places) {
    const before = text.slice(0, place).split(QUOTE);
    const after = text.slice(place).split(QUOTE);
    if (before.length % 2) after[0] = unquoted(after[0]!);
    else before.push(unquoted(before.pop()!));
    const calls = read(new Reader([...before, ...after].join(QUOTE)));
    if (calls) found.set(JSON.stringify(calls), calls);
  }
  return found.size === 1 ? [...found.values()][0] : undefined;
}

function endsWithin(text: string, from: number, to: number): number[] {
  return [...text.slice(from, to).matchAll(/(?<!\s)\s*[,:=}\])]/g)].map(({ index }) => from + index);
}

/** A string of which one end alone is a quote token, without other quotes in that place. */
function unquoted(text: string): string {
  for (const quote of ['"', "'", "`"]) {
    const isFirst = text.startsWith(quote);
    const isLast = text.endsWith(quote);
    if (text.length > 1 && isFirst && isLast) return text.slice(1, -1);
    if (text.split(quote).length === 2 && (isFirst || isLast)) return text.replace(quote, "");
  }
  return text;
}

class Reader {
  /** Where values begin, and between which places strings of quote tokens lie. */
  readonly starts: number[] = [];
  readonly strings: [from: number, to: number][] = [];
  private at = 0;
  private depth = 0;
  private begin = 0;
  private json: boolean | undefined; // whether what begins there is, once it is asked for

  /** With `mayLackEnd` the call's last bracket may be missing, if nothing else is. */
  constructor(
    private readonly text: string,
    private readonly mayLackEnd = false,
  ) {}

  whole(): ToolCall[] {
    const calls: ToolCall[] = [];
    for (let isApart = true; ; isApart = this.match(BETWEEN) !== null) {
      if (calls.length) this.skip();
      if (calls.length && this.at === this.text.length) return calls;
      const head = this.match(HEAD) ?? (isApart ? this.match(HEAD_WITHOUT_CALL) : null);
      if (head) calls.push({ name: head[1]!.replace(/(?<=.):+$/, ""), args: this.args() });
      else calls.push(...this.named());
    }
  }

  private args(): Fields {
    if (!this.take("(")) return this.ownBraces();
    this.skip();
    if (this.text[this.at] !== "{") return this.fields(")");
    const args = this.ownBraces();
    this.expect(")");
    return args;
  }

  /** Calls as other models write them, in a list or below `tool_calls`, too. */
  private named(): ToolCall[] {
    this.match(NO_HEAD);
    this.skip();
    let said: Value;
    if (this.text[this.at] === "[") {
      [this.begin, this.json] = [this.at++, undefined];
      said = this.items();
    } else said = this.braces();
    const keys = isFields(said) ? Object.keys(said) : [];
    if (isFields(said) && keys.length === 1 && WRAPPERS.includes(keys[0]!)) said = said[keys[0]!]!;
    return (Array.isArray(said) ? said : [said]).map(namedCall);
  }

  private ownBraces(): Fields {
    this.skip();
    if (!this.match(TWICE)) return this.braces();
    const args = this.braces();
    this.expect("}");
    return args;
  }

  private braces(): Fields {
    this.skip();
    [this.begin, this.json] = [this.at, undefined];
    this.expect("{");
    return this.fields("}");
  }

  /** The whole text as a JSON object. */
  object(): Fields {
    const fields = this.braces();
    this.skip();
    if (this.at < this.text.length || !this.isJson()) throw new SyntaxError("no JSON");
    return fields;
  }

  private isJson(): boolean {
    if (this.json === undefined) {
      try {
        JSON.parse(this.text.slice(this.begin, this.endOfJson()));
        this.json = true;
      } catch {
        this.json = false;
      }
    }
    return this.json;
  }

  /** Where the object or list ends that begins there, if it is JSON. */
  private endOfJson(): number {
    let depth = 0;
    for (const { 0: sign, index } of this.text.slice(this.begin).matchAll(/"(?:[^"\\]|\\.)*"|[{}[\]]/gs)) {
      if (sign === "{" || sign === "[") depth++;
      else if ((sign === "}" || sign === "]") && --depth === 0) return this.begin + index + 1;
    }
    return this.text.length;
  }

  private value(parent: string): Value {
    if (++this.depth > MAX_DEPTH) throw new SyntaxError("too deeply nested");
    try {
      this.skip();
      if (!this.isJson()) this.starts.push(this.at); // of JSON no mark is missing
      const text = this.string();
      if (text !== undefined) return text;
      if (this.take("{")) return this.fields("}");
      return this.take("[") ? this.items() : this.bare(parent);
    } finally {
      this.depth--;
    }
  }

  private fields(close: string): Fields {
    const fields: Fields = Object.create(null) as Fields;
    const separators = new Set<string>();
    while (!this.take(close)) {
      const quoted = this.string();
      const key = quoted ?? this.match(KEY)?.[0];
      this.skip();
      const separator = this.match(SEPARATOR)?.[0];
      const isComment = quoted === undefined && COMMENT.test(key ?? "");
      if (key === undefined || separator === undefined || isComment)
        throw new SyntaxError("a key or its value is missing");
      separators.add(separator);
      if (key in fields || separators.size > 1) throw new SyntaxError("not certain what belongs to a key");
      fields[key] = this.value(close);
      const isAfterQuote = this.text.endsWith(QUOTE, this.at) && this.at === this.strings.at(-1)![1] + QUOTE.length;
      if (this.take(",") || (isAfterQuote && this.follows(KEY_FOLLOWS))) continue;
      if (this.depth || !this.lacksItsEnd(fields[key])) this.expect(close);
      break;
    }
    return fields;
  }

  /** Whether the call's own bracket alone is missing, after its last value: of an object, one pair. */
  private lacksItsEnd(last: Value): boolean {
    const isOne = !(isFields(last) && Object.keys(last).length > 1);
    return this.mayLackEnd && isOne && this.at === this.text.length;
  }

  private follows(pattern: RegExp): boolean {
    const { at } = this;
    const found = this.match(pattern);
    this.at = at;
    return found !== null;
  }

  private items(): Value[] {
    const items: Value[] = [];
    while (!this.take("]")) {
      items.push(this.value("]"));
      if (this.take(",")) continue;
      this.expect("]");
      break;
    }
    return items;
  }

  /** A text between quote tokens or quotes; undefined if there is none. */
  private string(): string | undefined {
    this.skip();
    const mark =
      /["'`]/.test(this.text[this.at] ?? "") && this.text.startsWith(QUOTE, this.at + 1) ? this.text[this.at]! : "";
    if (this.take(mark + QUOTE)) {
      const stop = this.text.indexOf(QUOTE, this.at);
      if (stop < 0) throw new SyntaxError("a string does not end");
      const text = this.text.slice(this.at, stop);
      this.strings.push([this.at, stop]);
      this.at = stop + QUOTE.length;
      if (mark) this.expect(mark);
      return text;
    }
    const plain = this.match(LONG) ?? this.match(TEMPLATE);
    if (plain) return withoutQuoteTokens(plain[2]!);
    const double = this.match(DOUBLE);
    const found = double ?? this.match(SINGLE);
    if (!found) return undefined;
    withoutQuoteTokens(found[1]!);
    if (found[1]!.includes("\\") && NO_ESCAPE_AT_ALL.test(found[1]!)) return found[1]!;
    if (NO_ESCAPES.test(found[1]!) && !this.isJson()) throw new SyntaxError("backslashes that may be escapes or not");
    const text = double ? fromJson(found[1]!) : fromPython(found[1]!);
    if (/\p{Surrogate}/u.test(text)) throw new SyntaxError("half of a character");
    return text;
  }

  private bare(parent: string): Value {
    const word = (this.match(parent === ")" ? /[^{}[\],\r\n)]+/y : /[^{}[\],\r\n]+/y)?.[0] ?? "").trim();
    if (!word) throw new SyntaxError("a value is missing");
    const known = WORDS.get(word);
    if (known !== undefined) return known;
    if (NUMBER.test(word)) return toNumber(word);
    if (!isOneText(word, parent)) throw new SyntaxError(`not certain where \`${word.slice(0, 40)}\` ends`);
    return word;
  }

  private skip(): void {
    this.match(/\s*/y);
  }

  private match(pattern: RegExp): RegExpExecArray | null {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.text);
    if (found) this.at = pattern.lastIndex;
    return found;
  }

  private take(sign: string): boolean {
    this.skip();
    if (!this.text.startsWith(sign, this.at)) return false;
    this.at += sign.length;
    return true;
  }

  private expect(sign: string): void {
    if (!this.take(sign)) throw new SyntaxError(`\`${sign}\` is missing`);
  }
}

function namedCall(said: Value): ToolCall {
  let call = isFields(said) ? { ...said } : {};
  if (KINDS.includes(call.type)) delete call.type;
  for (const label of LABELS) if (["string", "number"].includes(typeof call[label])) delete call[label];
  if (Object.keys(call).join() === "function" && isFields(call.function)) call = call.function;
  const names = NAMES.filter((key) => typeof call[key] === "string");
  const stated = ARGUMENTS.filter((key) => key in call);
  const name = call[names[0] ?? ""];
  const given = call[stated[0] ?? ""] ?? "";
  const args = typeof given !== "string" ? given : given && new Reader(given).object();
  const isOne = names.length === 1 && stated.length < 2 && Object.keys(call).length === 1 + stated.length;
  if (typeof name !== "string" || !NAME.test(name) || !isOne) throw new SyntaxError("no call");
  if (args === "") return { name, args: {} };
  if (!isFields(args)) throw new SyntaxError("no call");
  return { name, args };
}

/** A string of quotation marks: a quote token in it may end it, or begin another one. */
function withoutQuoteTokens(text: string): string {
  if (text.includes(QUOTE)) throw new SyntaxError("not certain where a string ends");
  return text;
}

function isFields(value: Value | undefined): value is Fields {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}
