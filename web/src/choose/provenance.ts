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
const PLAIN_FILE = /^\w[\w.-]{0,254}$/;
const PLAIN_NAME = /^\w[\w.-]{0,63}$/;
const SHA256 = /^[0-9a-f]{64}$/;

type Fields = Readonly<Record<string, unknown>>;

/**
 * The libraries for WebGPU, the stock client's first where it is one of them.
 *
 * Throws an Error that names what is wrong.
 */
export function readLibraries(provenance: string): WebLibrary[] {
  let value: unknown;
  try {
    value = JSON.parse(provenance);
  } catch {
    throw damaged("the file", "JSON", "something else");
  }
  const record = object(value, "the file");
  if (record["schema"] !== SCHEMA || record["schema_version"] !== 1)
    throw damaged("schema", `${SCHEMA} 1`, `${record["schema"]} ${record["schema_version"]}`);
  const files = object(record["files"], "files");
  const main = text(record["library"], PLAIN_FILE, "library");
  const listed = record["libraries"] ?? undefined;
  const entries = listed === undefined ? [onlyLibrary(main, object(record["build"], "build"))] : listed;
  if (!Array.isArray(entries) || entries.length === 0 || entries.length > MAX_LIBRARIES)
    throw damaged("libraries", `a list of 1 to ${MAX_LIBRARIES}`, entries);
  const libraries = entries
    .map((entry, index) => object(entry, `libraries[${index}]`))
    .filter((entry) => entry["target"] === "webgpu")
    .map((entry) => readLibrary(entry, files));
  const names = new Set(libraries.map(({ name }) => name));
  if (names.size !== libraries.length) throw damaged("libraries", "names that differ", "a name that is there twice");
  if (libraries.length === 0)
    throw new Error("The package holds no library for browsers. Compile it with --target webgpu.");
  return libraries;
}

/** What a package without a list of libraries says of its only one. */
function onlyLibrary(file: string, build: Fields): Fields {
  const needs = object(build["requirements"] ?? {}, "build.requirements");
  const usesF16 = /f16/.test(String(build["recipe"] ?? ""));
  return {
    file,
    name: build["limits"] ?? "default",
    target: build["target"] ?? "webgpu",
    limits: build["limits"],
    activations: build["activations"],
    float16: usesF16 ? "native" : null,
    requirements: { ...needs, features: needs["features"] ?? (usesF16 ? ["shader-f16"] : []) },
  };
}

function readLibrary(entry: Fields, files: Fields): WebLibrary {
  const file = text(entry["file"], PLAIN_FILE, "libraries.file");
  const name = text(entry["name"], PLAIN_NAME, "libraries.name");
  if (!Object.hasOwn(files, file)) throw damaged(`${name}.file`, "one of `files`", file);
  const stored = object(files[file], `files.${file}`);
  const float16 = entry["float16"] ?? null;
  const needs = object(entry["requirements"] ?? {}, `${name}.requirements`);
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
  };
}

function damaged(what: string, expected: string, found: unknown): Error {
  const shown = String(typeof found === "string" ? found : JSON.stringify(found)).slice(0, 80);
  return new Error(
    `provenance.json: ${what} has to be ${expected}, and is ${shown}. Compile the package again and upload all of its files.`,
  );
}

function object(value: unknown, what: string): Fields {
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw damaged(what, "an object", value);
  return value as Fields;
}

function text(value: unknown, form: RegExp, what: string): string {
  if (typeof value !== "string" || !form.test(value)) throw damaged(what, `a text like ${form.source}`, value);
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
