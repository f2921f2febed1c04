// The known answers that a library carries in its metadata: `gemma4_compile/device_check/known_answers.py` writes them.
import { bytesPerElement, decoded, samplePositions, type DType, type KnownInput, type Spread } from "./known_inputs";

export interface Launch {
  /** The kernel's entry point. */
  kernel: string;
  grid: [number, number, number];
  /** Words of the uniform, without the last one. */
  scalars: number[];
  /** The case's buffer of each binding. */
  buffers: number[];
}

/** What a part of a buffer has to hold afterwards. */
export interface Expectation {
  buffer: number;
  name: string;
  first: number;
  count: number;
  /** Samples, in the buffer's dtype, in base64. */
  expected: string;
  /** How far a value may be off: by this, and by this share of it. */
  absolute: number;
  relative: number;
  /** Of packed int8 values instead: how many may be one unit off. */
  moved?: number;
}

/** Launches over buffers of their own. */
export interface Case {
  title: string;
  buffers: KnownInput[];
  launches: Launch[];
  results: Expectation[];
}

export interface KnownAnswers {
  /** Of the cases and of the kernels that they run. */
  digest: string;
  /** The `--limits` that the package was compiled with. */
  limits: string;
  /** Neighbouring threads that exchange values; 0: none do. */
  subgroupSize: number;
  cases: Case[];
}

const VERSION = 1;
const MAX_CASES = 64;
const MAX_BUFFERS = 16;
const MAX_BYTES = 64 << 20;
const DTYPES: readonly string[] = ["float16", "float32", "int32", "uint32"] satisfies DType[];

/**
 * The known answers in a library's metadata; undefined for a library without any, or with those of a version that
 * this module does not know.
 *
 * Throws if they are damaged.
 */
export function parseKnownAnswers(metadataJson: string): KnownAnswers | undefined {
  const { known_answers: found } = JSON.parse(metadataJson) as { known_answers?: Record<string, unknown> };
  if (found?.["version"] !== VERSION) return undefined;
  return {
    digest: text(found["digest"], "digest"),
    limits: text(found["limits"], "limits"),
    subgroupSize: whole(found["subgroup_size"], 0, 1024, "subgroup_size"),
    cases: list(found["cases"], MAX_CASES, "cases").map(parseCase),
  };
}

export function byteSize({ dtype, count }: KnownInput): number {
  return Math.ceil((count * bytesPerElement(dtype)) / 4) * 4;
}

function parseCase(value: unknown): Case {
  const fields = record(value, "case");
  const buffers = list(fields["buffers"], MAX_BUFFERS, "buffers").map(parseInput);
  if (buffers.reduce((sum, buffer) => sum + byteSize(buffer), 0) > MAX_BYTES)
    throw damaged("buffers", "at most 64 MiB", "more");
  const buffer = (index: unknown) => whole(index, 0, buffers.length - 1, "buffer");
  return {
    title: text(fields["title"], "title"),
    buffers,
    launches: list(fields["launches"], 4, "launches").map((item) => {
      const launch = record(item, "launch");
      const [x, y, z] = list(launch["grid"], 3, "grid").map((extent) => whole(extent, 1, 0xffffff, "grid"));
      return {
        kernel: text(launch["kernel"], "kernel"),
        grid: [x ?? 1, y ?? 1, z ?? 1],
        scalars: list(launch["scalars"], MAX_BUFFERS, "scalars").map((scalar) =>
          whole(scalar, 0, 0xffffffff, "scalar"),
        ),
        buffers: list(launch["buffers"], MAX_BUFFERS, "buffers").map(buffer),
      };
    }),
    results: list(fields["results"], MAX_BUFFERS, "results").map((item) => {
      const result = record(item, "result");
      const index = buffer(result["buffer"]);
      return parseExpectation(result, index, buffers[index]!);
    }),
  };
}

function parseInput(value: unknown): KnownInput {
  const fields = record(value, "buffer");
  const dtype = text(fields["dtype"], "dtype");
  if (!DTYPES.includes(dtype)) throw damaged("dtype", DTYPES.join(", "), dtype);
  const input: KnownInput = { dtype: dtype as DType, count: whole(fields["count"], 1, MAX_BYTES, "count") };
  if (fields["data"] !== undefined) {
    input.data = text(fields["data"], "data");
    sameCount(decoded(input.data).length / bytesPerElement(input.dtype), input.count, "data");
  } else if (fields["spreads"] !== undefined) {
    input.seed = whole(fields["seed"], 0, 0xffffffff, "seed");
    input.spreads = list(fields["spreads"], 4, "spreads").map(parseSpread);
  }
  return input;
}

function parseSpread(value: unknown): Spread {
  const fields = record(value, "spread");
  return {
    bits: whole(fields["bits"], 0, 32, "bits"),
    offset: whole(fields["offset"], -(2 ** 31), 2 ** 31, "offset"),
    step: number(fields["step"], "step"),
    mask: fields["mask"] === undefined ? 0xffffffff : whole(fields["mask"], 0, 0xffffffff, "mask"),
  };
}

function parseExpectation(fields: Record<string, unknown>, buffer: number, input: KnownInput): Expectation {
  const first = whole(fields["first"], 0, input.count - 1, "first");
  const count = whole(fields["count"], 1, input.count - first, "count");
  const expected = text(fields["expected"], "expected");
  sameCount(decoded(expected).length / bytesPerElement(input.dtype), samplePositions(first, count).length, "expected");
  const common = { buffer, name: text(fields["name"], "name"), first, count, expected };
  if (fields["moved"] !== undefined)
    return { ...common, absolute: 0, relative: 0, moved: whole(fields["moved"], 0, 1024, "moved") };
  return {
    ...common,
    absolute: number(fields["absolute"], "absolute"),
    relative: number(fields["relative"], "relative"),
  };
}

function damaged(what: string, expected: string, found: unknown): Error {
  const shown = String(JSON.stringify(found)).slice(0, 80);
  return new Error(
    `The library's known answers are damaged: ${what} has to be ${expected}, and is ${shown}. Compile the package again.`,
  );
}

function sameCount(found: number, expected: number, what: string): void {
  if (found !== expected) throw damaged(what, `${expected} elements`, found);
}

function record(value: unknown, what: string): Record<string, unknown> {
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw damaged(what, "an object", value);
  return value as Record<string, unknown>;
}

function list(value: unknown, most: number, what: string): unknown[] {
  if (!Array.isArray(value) || value.length > most) throw damaged(what, `a list of at most ${most}`, value);
  return value;
}

function text(value: unknown, what: string): string {
  if (typeof value !== "string") throw damaged(what, "text", value);
  return value;
}

function number(value: unknown, what: string): number {
  if (typeof value !== "number" || !Number.isFinite(value)) throw damaged(what, "a number", value);
  return value;
}

function whole(value: unknown, least: number, most: number, what: string): number {
  const found = number(value, what);
  if (!Number.isInteger(found) || found < least || found > most)
    throw damaged(what, `an integer from ${least} to ${most}`, found);
  return found;
}
