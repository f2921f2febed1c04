// The model libraries that a package has for browsers, from its provenance.json: a stranger's file, read in bounds.

/** A library, and what it asks of a device. Sizes in bytes. */
export interface WebLibrary {
  file: string;
  /** Unique in its package. */
  name: string;
  sha256: string;
  nbytes: number;
  limits: string;
  activations: string;
  /** `native` needs `shader-f16`; `words` does not; null: the recipe has none. */
  float16: string | null;
  needs: Needs;
  memory?: MemoryNeeds;
}

/** Of a device's memory, by part; 0 where an earlier version did not write it. */
export interface MemoryNeeds {
  weightsBytes: number;
  kvSlidingBytes: number;
  /** At the package's whole context. */
  kvFullBytes: number;
  activationBytes: number;
  /** What the table of per-layer embeddings takes that may lie on the host; 0: the library takes no rows from there. */
  hostTableBytes: number;
}

export interface Needs {
  features: readonly string[];
  languageFeatures: readonly string[];
  /** Neighbouring threads that exchange values; 0: none do. */
  subgroupSize: number;
  maxBindingBytes: number;
  maxThreadsPerBlock: number;
  maxSharedBytes: number;
  maxStorageBuffers: number;
}

const SCHEMA = "gemma4_compile.package";
const MAX_LIBRARIES = 64;
const MAX_FEATURES = 32;
const MAX_BYTES = 1 << 28; // of a library's file
const PLAIN_FILE: Form = [/^\w[\w.-]{0,254}$/, "a plain file name"];
const PLAIN_NAME: Form = [/^\w[\w.-]{0,63}$/, "a plain name"];
const SHA256: Form = [/^[0-9a-f]{64}$/, "64 hexadecimal digits"];
const HINT =
  "The package on the server is damaged, or something else wrote it: compile it again and upload all of its files.";

type Form = readonly [RegExp, string];
type Fields = Readonly<Record<string, unknown>>;

/**
 * The libraries for WebGPU of a parsed provenance.json, the stock client's first where it is one of them.
 *
 * Throws an Error that names what is wrong, and in a second line what to do.
 */
export function librariesOf(provenance: unknown): WebLibrary[] {
  const record = object(provenance, "the file");
  const files = object(record["files"], "files");
  const listed = record["libraries"] ?? undefined;
  const entries = listed === undefined ? [onlyLibrary(record)] : listed;
  if (!Array.isArray(entries) || entries.length === 0 || entries.length > MAX_LIBRARIES)
    throw damaged("libraries", `a list of 1 to ${MAX_LIBRARIES}`, entries);
  const libraries = entries.flatMap((each, index) => {
    const entry = object(each, `libraries[${index}]`);
    const field = listed === undefined ? "library" : `libraries[${index}].file`;
    return entry["target"] === "webgpu" ? [readLibrary(entry, files, field)] : [];
  });
  const twice = libraries.find(({ name }, index) => libraries.findIndex((each) => each.name === name) !== index);
  if (twice) throw damaged("libraries", "libraries of different names", twice.name);
  if (libraries.length === 0)
    throw new Error("The package holds no library for browsers.\nCompile it with --target webgpu.");
  return libraries;
}

/** The same of the file's text. */
export function readLibraries(provenance: string): WebLibrary[] {
  let record: unknown;
  try {
    record = JSON.parse(provenance);
  } catch {
    throw damaged("the file", "JSON", "something else");
  }
  const { schema, schema_version } = object(record, "the file");
  if (schema !== SCHEMA || schema_version !== 1) throw damaged("schema", `${SCHEMA} 1`, `${schema} ${schema_version}`);
  return librariesOf(record);
}

/** What a package without a list of libraries says of its only one. */
function onlyLibrary(record: Fields): Fields {
  const build = object(record["build"] ?? {}, "build");
  const needs = object(build["requirements"] ?? {}, "build.requirements");
  const usesF16 = /f16/.test(String(build["recipe"] ?? ""));
  const file = record["library"];
  const isNative = typeof file === "string" && !file.endsWith(".wasm");
  return {
    file,
    name: build["limits"] ?? "default",
    target: isNative ? "native" : "webgpu",
    limits: build["limits"],
    activations: build["activations"],
    float16: usesF16 ? "native" : null,
    requirements: { ...needs, features: needs["features"] ?? (usesF16 ? ["shader-f16"] : []) },
  };
}

/** `field`: where its file is named. */
function readLibrary(entry: Fields, files: Fields, field: string): WebLibrary {
  const file = text(entry["file"], PLAIN_FILE, field);
  const name = text(entry["name"], PLAIN_NAME, "libraries.name");
  if (!Object.hasOwn(files, file)) throw damaged(field, "one of `files`", file);
  const stored = object(files[file], `files.${file}`);
  const float16 = entry["float16"] ?? null;
  const needs = object(entry["requirements"], `${name}.requirements`);
  const count = (field: string) => whole(needs[field] ?? 0, Number.MAX_SAFE_INTEGER, `${name}.${field}`);
  return {
    file,
    name,
    sha256: text(stored["sha256"], SHA256, `files.${file}.sha256`),
    nbytes: whole(stored["nbytes"], MAX_BYTES, `files.${file}.nbytes`),
    limits: text(entry["limits"] ?? "default", PLAIN_NAME, `${name}.limits`),
    activations: text(entry["activations"] ?? "float", PLAIN_NAME, `${name}.activations`),
    float16: float16 === null ? null : text(float16, PLAIN_NAME, `${name}.float16`),
    needs: {
      features: texts(needs["features"] ?? [], `${name}.features`),
      languageFeatures: texts(needs["language_features"] ?? [], `${name}.language_features`),
      subgroupSize: count("subgroup_size"),
      maxBindingBytes: count("max_binding_bytes"),
      maxThreadsPerBlock: count("max_threads_per_block"),
      maxSharedBytes: count("max_shared_memory_bytes"),
      maxStorageBuffers: count("max_storage_buffers"),
    },
    memory: {
      weightsBytes: count("weights_bytes"),
      kvSlidingBytes: count("kv_sliding_bytes"),
      kvFullBytes: count("kv_full_bytes"),
      activationBytes: count("activation_bytes"),
      hostTableBytes: count("host_table_bytes"),
    },
  };
}

function damaged(what: string, expected: string, found: unknown): Error {
  return new Error(`provenance.json: \`${what}\` should be ${expected}, and is ${shown(found)}.\n${HINT}`);
}

function shown(value: unknown): string {
  if (value === undefined || value === null) return "missing";
  if (Array.isArray(value)) return `a list of ${value.length}`;
  return typeof value === "object" ? "an object" : JSON.stringify(value).slice(0, 80);
}

function object(value: unknown, what: string): Fields {
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw damaged(what, "an object", value);
  return value as Fields;
}

function text(value: unknown, [form, words]: Form, what: string): string {
  if (typeof value !== "string" || !form.test(value)) throw damaged(what, words, value);
  return value;
}

function texts(value: unknown, what: string): string[] {
  if (!Array.isArray(value) || value.length > MAX_FEATURES)
    throw damaged(what, `a list of at most ${MAX_FEATURES}`, value);
  return value.map((each) => text(each, PLAIN_NAME, what));
}

function whole(value: unknown, most: number, what: string): number {
  if (!Number.isInteger(value) || (value as number) < 0 || (value as number) > most)
    throw damaged(what, `a whole number up to ${most}`, value);
  return value as number;
}
