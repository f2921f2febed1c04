// Bare words, numbers and quoted texts within a call, as `call_reader.ts` takes them.
import type { Value } from "./tool_syntax";

export const NUMBER = /^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?$/;
export const COMMENT = /(?:^|\s)(?:\/\/|\/\*|#\s)|\*\/(?:\s|$)/;
const QUOTES_IN_A_WORD = /["`\u201c\u201d]|(?<![\p{L}\p{N}_])['\u2018\u2019]|['\u2018\u2019](?![\p{L}\p{N}_])/u;
const TIME = /(?<![\w:])\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?![\w:])/g;
const ESCAPED: Record<string, string> = { "'": "'", '"': '"', "\\": "\\", n: "\n", r: "\r", t: "\t" };
export const WORDS = new Map<string, Value>([
  ["true", true],
  ["false", false],
  ["null", null],
  ["True", true],
  ["False", false],
  ["None", null],
]);

export function isOneText(word: string, parent: string): boolean {
  if (QUOTES_IN_A_WORD.test(word) || word.split("(").length !== word.split(")").length) return false;
  if (COMMENT.test(word) || word.endsWith(";")) return false;
  if (parent === "]" && (word.includes(";") || word.split(/\s+/).every(isNoText))) return false;
  if (!/[:=]/.test(word.replace(TIME, ""))) return true;
  if (/[\s;]/.test(word) || /^[:=]|:$/.test(word)) return false;
  return parent !== "]" || !/^[A-Za-z_]\w*[:=](?!\/\/)/.test(word);
}

function isNoText(word: string): boolean {
  return WORDS.has(word) || NUMBER.test(word);
}

/** A number, unless a double would be another one. */
export function toNumber(word: string): number {
  const number = Number(word);
  const isInteger = /^-?\d+$/.test(word);
  const isLost = isInteger ? !Number.isSafeInteger(number) : number === 0 && /[1-9]/.test(word.split(/e/i)[0]!);
  if (!Number.isFinite(number) || isLost) throw new SyntaxError(`\`${word.slice(0, 40)}\` is beyond numbers`);
  return number;
}

export function fromJson(text: string): string {
  const controls = (letter: string) =>
    letter[0] === "\\" ? letter : `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`;
  // biome-ignore lint/suspicious/noControlCharactersInRegex: JSON has them escaped, models do not
  return JSON.parse(`"${text.replace(/\\.|[\u0000-\u001f]/gs, controls)}"`) as string;
}

export function fromPython(text: string): string {
  return text.replace(/\\(.)/gs, (_, letter: string) => {
    const meant = ESCAPED[letter];
    if (meant === undefined) throw new SyntaxError("backslashes that may be escapes or not");
    return meant;
  });
}
