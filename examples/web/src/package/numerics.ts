// `numerics.json`: how far a package is from its checkpoint in float32, as gemma4-verify found it. A package need not have
// one, and nothing depends on it but a few lines of text.
import type { Fields } from "./json_fields";
import { UserError } from "./user_error";

export const NUMERICS = "numerics.json";
const SCHEMA = "gemma4_compile.numerics";
/** Version 1 has one text, without a form. */
const VERSIONS: unknown[] = [1, 2];
const MOST_TEXTS = 16;
const LONGEST_NAME = 40;
const FORMS: Record<string, string> = {
  chat: "Chat",
  document: "Long document",
  code: "Code",
  script: "Other scripts",
};
const ONE_TEXT = "A story";

/** Next tokens of a text, the package's next to the checkpoint's. */
export interface TextNumerics {
  name: string;
  /** Mean divergence, nats. */
  divergence: number;
  /** Share of positions with the same most probable token. */
  agreement: number;
  perplexity: number;
  reference: number;
}

export interface Numerics {
  /** Whether every measure is within its bound. */
  passed: boolean;
  /** Bits of a weight; 0: not known. */
  bits: number;
  texts: TextNumerics[];
}

/** A report of a package; undefined for one of another version, or with values that are none. */
export function readNumerics(report: Fields): Numerics | undefined {
  try {
    if (report.raw("schema") !== SCHEMA || !VERSIONS.includes(report.raw("schema_version"))) return undefined;
    const texts = report.object("texts");
    const names = texts.names.filter((name) => Object.hasOwn(FORMS, name) && name.length <= LONGEST_NAME);
    return {
      passed: report.flag("passed"),
      bits: report.object("package").number("bits_per_weight", 0, 64, 0),
      texts: names.length
        ? names.slice(0, MOST_TEXTS).map((name) => readText(FORMS[name]!, texts.object(name).object("whole")))
        : [readText(ONE_TEXT, report.object("whole").object("logits"))],
    };
  } catch (error) {
    if (error instanceof UserError) return undefined;
    throw error;
  }
}

function readText(name: string, measures: Fields): TextNumerics {
  const number = (field: string, most: number) => measures.number(field, 0, most, Number.NaN);
  return {
    name,
    divergence: number("kl_mean", Number.MAX_VALUE),
    agreement: number("top1", 1),
    perplexity: number("perplexity", Number.MAX_VALUE),
    reference: number("reference_perplexity", Number.MAX_VALUE),
  };
}

/** What is shown: a line for all, and the cells of each text. */
export function numericsLines({ passed, bits, texts }: Numerics): { title: string; rows: [string, string][] } {
  const size = bits ? ` at ${bits.toFixed(2)} bits a weight` : "";
  return {
    title: passed ? `Next to the checkpoint${size}` : `Next to the checkpoint${size}: outside of the recipe's bounds`,
    rows: texts.map(({ name, divergence, agreement, perplexity, reference }) => [
      name,
      `same next token ${(100 * agreement).toFixed(1)} % · divergence ${formatSmall(divergence)} · ` +
        `perplexity ${formatSmall(perplexity)} (${formatSmall(reference)})`,
    ]),
  };
}

/** Three digits: 0.00125, 12.3, 4.87e+4. */
function formatSmall(value: number): string {
  return String(value !== 0 && (value < 1e-4 || value >= 1e4) ? value.toExponential(1) : Number(value.toPrecision(3)));
}
