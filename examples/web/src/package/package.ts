// A package's own description, read before anything large is downloaded.
import type { Needs, TableChoice, TablePlace } from "gemma4-web/choose";
import { fetchChecked, readSmall, Refused, Unreachable } from "../download/fetch";
import { sha256 } from "../download/hash";
import { openStorage } from "../download/storage";
import { type Prompts, readPrompts } from "../meaning/prompts";
import { type MediaInputs, mediaInputsOf } from "../media/inputs";
import { hubModelOf } from "./address";
import type { BeginningsChoice } from "./beginnings";
import { Fields } from "./json_fields";
import type { Library, LibraryChoice, ListedLibrary } from "./libraries";
import { NUMERICS, type Numerics, readNumerics } from "./numerics";
import { cleanName, PROVENANCE, readFiles, readProvenance, type PackageFile, type Provenance } from "./provenance";
import { areGemmas, readTurns, type Turns } from "./turns";
import { formatBytes, MIB } from "./units";
import { UserError } from "./user_error";

export type { PackageFile } from "./provenance";

/** What a device must offer, in bytes. The KV state of full attention grows with the context. */
export interface Requirements {
  features: string[];
  /** Threads that the smallest subgroup must have; 0: any. */
  subgroupSize: number;
  maxBindingBytes: number;
  weightsBytes: number;
  kvSlidingBytes: number;
  kvFullBytes: number;
  activationBytes: number;
  /** Of the weights, what the device saves with the table of per-layer embeddings on the host; 0: it cannot be there. */
  hostTableBytes: number;
}

/** Where a person wants the table of per-layer embeddings. */
export type TableWish = "auto" | TablePlace;

export interface Package {
  /** Folder of the files, with a slash at the end. */
  url: string;
  /** SHA-256 of its provenance, which holds those of all files. */
  digest: string;
  /** Changes with any file of the package. */
  version: string;
  /** What it says that it is, for people: `tiny`, `gemma-4-E2B-it`, the name of a folder. */
  title: string;
  isTiny: boolean;
  library: string;
  /** All for browsers, of which `library` is one; the requirements and files are that one's. */
  libraries: Library[];
  /** Which one it is, and why; undefined: nobody has chosen yet. */
  choice?: LibraryChoice;
  /** Where its table of per-layer embeddings is to lie, and why; undefined: it has none, or nobody has chosen. */
  table?: TableChoice & { wish: TableWish };
  /** What is kept on the device of prompts that were read; undefined: nobody has chosen. */
  beginnings?: BeginningsChoice;
  recipe: string;
  contextLength: number;
  files: PackageFile[];
  totalBytes: number;
  /** Names of the files that hold weights. */
  shards: Set<string>;
  /** Names of the drafter's files, which a chat can do without; none where there is no drafter, or it is not wanted. */
  drafter: Set<string>;
  /** Whether there is one, wanted or not. */
  hasDrafter: boolean;
  requirements: Requirements;
  sampling: Sampling;
  /** What an embedder was trained to see in front of what is searched, and of what is found. */
  prompts: Prompts;
  /** The strings of the model's own template around messages. */
  turns: Turns;
  /** The conversation whose prompt differs from what the checkpoint's template writes; empty where none does. */
  difference: string;
  thinks: boolean;
  usesTools: boolean;
  /** Pictures and sounds that it takes. */
  media: MediaInputs;
  /** How far it is from its checkpoint; undefined: nobody has measured it. */
  numerics: Numerics | undefined;
  /** The host that answered in place of the folder's own; undefined: its own did. */
  redirectedTo?: string;
  /** The server could not be asked: this is what was read when it last could. */
  offline: boolean;
}

export interface Sampling {
  temperature: number;
  topP: number;
  repetitionPenalty: number;
  frequencyPenalty: number;
  presencePenalty: number;
}

export const CHAT = "chat.completions";
export const EMBEDDINGS = "embeddings";
/** What a package is wanted for, as manifests name it. */
export type Task = typeof CHAT | typeof EMBEDDINGS;
const CAN = { [CHAT]: "chat", [EMBEDDINGS]: "embed texts" };

export const MANIFEST = "mlc-model-manifest.json";
export const TENSOR_CACHE = "tensor-cache.json";
/** Models of the compiler's own, which are known by their names. */
const SHIPPED = ["tiny", "tiny-embedding"];
const OF_DRAFTER = /^(drafter-tensor-cache\.json|params_shard_drafter_\d+\.bin)$/;
const CHAT_CONFIG = "mlc-chat-config.json";
/** The small files that the client reads, too. */
export const READ_BY_CLIENT = [MANIFEST, CHAT_CONFIG, TENSOR_CACHE];
const TEMPLATE = "chat_template.jinja";
const MANIFEST_SCHEMA = "mlc.model-package";
/** The small files that were read last, by the package's address: for starting without a network. */
export const PACKAGES = "gemma4/packages";
// As the native runtime: of a JSON file, and of what one lists.
const LARGEST_SMALL_FILE = 16 * MIB;
const MOST_SHARDS = 10_000;
const MOST_TENSORS = 100_000;
const MOST_TOKENIZER_FILES = 32;
const LONGEST_CONTEXT = 2 ** 24;
const LEAST = 1e-6; // the client takes no zero here
const MOST_BYTES = Number.MAX_SAFE_INTEGER;

interface Shard {
  name: string;
  tensors: { dtype: string; nbytes: number }[];
}

/**
 * Reads the small files, from the server or, if it cannot be reached, as they were last time.
 *
 * They are kept for a start without a network where the package `mayBeKept`: one that somebody agreed to open.
 */
export async function readPackage(
  url: string,
  mayBeKept: (pack: Package) => boolean = () => true,
  task: Task = CHAT,
): Promise<Package> {
  const names = [PROVENANCE, ...READ_BY_CLIENT];
  const cache = await openStorage(PACKAGES);
  try {
    const files = new Map<string, Uint8Array<ArrayBuffer>>();
    let redirectedTo: string | undefined;
    for (const name of names) {
      const { data, origin } = await fetchBytes(url + name);
      files.set(name, data);
      if (origin !== new URL(url).origin) redirectedTo ??= new URL(origin).host;
    }
    const listed = readFiles(Fields.parse(files.get(PROVENANCE)!, PROVENANCE));
    if (listed.has(TEMPLATE)) files.set(TEMPLATE, (await fetchBytes(url + TEMPLATE)).data);
    // Nothing depends on it: a package that was uploaded without it is whole.
    const report = listed.has(NUMERICS) ? await fetchBytes(url + NUMERICS).catch(() => undefined) : undefined;
    if (report) files.set(NUMERICS, report.data);
    const pack = { ...(await describe(url, files, false, task)), ...(redirectedTo && { redirectedTo }) };
    for (const [name, data] of mayBeKept(pack) ? files : []) {
      await cache.put(url + name, new Response(data)).catch(() => undefined);
    }
    return pack;
  } catch (error) {
    if (!(error instanceof Unreachable)) throw inWordsOfTheHub(error, url);
    const files = new Map<string, Uint8Array<ArrayBuffer>>();
    for (const name of [...names, TEMPLATE, NUMERICS]) {
      const kept = await cache.match(url + name);
      if (kept) files.set(name, new Uint8Array(await kept.arrayBuffer()));
    }
    if (names.some((name) => !files.has(name))) throw error;
    return describe(url, files, true, task);
  }
}

/** Checks the small files against each other and puts together what the page has to know. */
export async function describe(
  url: string,
  files: ReadonlyMap<string, Uint8Array<ArrayBuffer>>,
  offline: boolean,
  task: Task = CHAT,
): Promise<Package> {
  const record = files.get(PROVENANCE)!;
  const provenance = readProvenance(Fields.parse(record, PROVENANCE));
  for (const [name, data] of files) {
    const declared = provenance.files.get(name);
    if (name !== PROVENANCE && declared && (await sha256(data)) !== declared.sha256) {
      throw new UserError(
        `${name} is not the file that ${PROVENANCE} names.`,
        "The package on the server is damaged or from two compilations; upload it again.",
      );
    }
  }
  const manifest = Fields.parse(files.get(MANIFEST)!, MANIFEST);
  const tasks = manifest.object("tasks");
  if (manifest.raw("schema") !== MANIFEST_SCHEMA || !tasks.has(task)) {
    const hint = tasks.has(EMBEDDINGS)
      ? "It embeds texts: give its address in Settings, Search."
      : "Does the address name a package's folder?";
    throw new UserError(`${MANIFEST} names no model that can ${CAN[task]}.`, hint);
  }
  const config = Fields.parse(files.get(CHAT_CONFIG)!, CHAT_CONFIG);
  for (const name of config.texts("tokenizer_files", MOST_TOKENIZER_FILES)) {
    if (!provenance.files.has(name)) throw config.wrong("tokenizer_files", `files that ${PROVENANCE} names`, name);
  }
  const shards = readShards(Fields.parse(files.get(TENSOR_CACHE)!, TENSOR_CACHE), provenance);
  const template = new TextDecoder().decode(files.get(TEMPLATE));
  const list = [...provenance.files.values()];
  const drafter = new Set(list.map(({ name }) => name).filter((name) => OF_DRAFTER.test(name)));
  const added = drafterBytes({ files: list, drafter });
  const libraries = provenance.libraries.map((library) => readNeeds(library, shards, added));
  const { requirements } = libraries.find(({ file }) => file === provenance.library)!;
  const digest = await sha256(record);
  const isTiny = provenance.kind === "tiny";
  const turns = readTurns(config);
  return {
    url,
    digest,
    version: digest.slice(0, 16),
    title: titleFrom(provenance, url),
    isTiny,
    library: provenance.library,
    libraries,
    recipe: provenance.recipe ?? cleanName(config.text("quantization", "")),
    contextLength: config.count("context_window_size", 1, LONGEST_CONTEXT),
    files: list,
    totalBytes: list.reduce((sum, { nbytes }) => sum + nbytes, 0),
    shards: new Set(shards.map(({ name }) => name)),
    drafter,
    hasDrafter: drafter.size > 0,
    requirements,
    sampling: {
      temperature: config.number("temperature", 0, 100, 1),
      topP: config.number("top_p", LEAST, 1, 1),
      repetitionPenalty: config.number("repetition_penalty", LEAST, 100, 1),
      frequencyPenalty: config.number("frequency_penalty", -2, 2, 0),
      presencePenalty: config.number("presence_penalty", -2, 2, 0),
    },
    prompts: readPrompts(config),
    turns,
    difference: provenance.difference,
    thinks: !isTiny && areGemmas(turns) && template.includes("<|think|>"),
    usesTools: areGemmas(turns) && template.includes("<|tool_response>"),
    numerics: files.has(NUMERICS) ? readNumerics(Fields.parse(files.get(NUMERICS)!, NUMERICS)) : undefined,
    media: mediaInputsOf(tasks.object(CHAT).raw("inputs"), provenance.dropsPadding),
    offline,
  };
}

/** The files of the weights; the client looks for each under its name. */
function readShards(index: Fields, { files }: Provenance): Shard[] {
  return index.objects("records", MOST_SHARDS).map((shard) => {
    const name = shard.fileName("dataPath");
    if (!files.has(name)) throw shard.wrong("dataPath", `a file that ${PROVENANCE} names`, name);
    const tensors = shard.objects("records", MOST_TENSORS).map((tensor) => ({
      dtype: tensor.text("dtype", ""),
      nbytes: tensor.count("nbytes", 0, MOST_BYTES),
    }));
    return { name, tensors };
  });
}

/** What its drafter adds to a download, and about as much to the graphics memory. */
export function drafterBytes({ files, drafter }: Pick<Package, "files" | "drafter">): number {
  return files.filter(({ name }) => drafter.has(name)).reduce((sum, { nbytes }) => sum + nbytes, 0);
}

/** The same package as if it had no drafter. */
export function withoutDrafter(pack: Package): Package {
  const files = pack.files.filter(({ name }) => !pack.drafter.has(name));
  const bytes = drafterBytes(pack);
  const less = (requirements: Requirements) => ({
    ...requirements,
    weightsBytes: requirements.weightsBytes - bytes,
  });
  const libraries = pack.libraries.map((library) => ({ ...library, requirements: less(library.requirements) }));
  const requirements = less(pack.requirements);
  return { ...pack, files, totalBytes: pack.totalBytes - bytes, drafter: new Set(), requirements, libraries };
}

function titleFrom({ kind, model }: Provenance, url: string): string {
  if (model) return model;
  if (SHIPPED.includes(kind)) return kind;
  const folder = new URL(url).pathname
    .replace(/\/resolve\/[^/]+\/$/, "/")
    .split("/")
    .at(-2);
  return cleanName(decoded(folder ?? "")) || "model";
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function readNeeds({ wanted, ...library }: ListedLibrary, shards: readonly Shard[], drafterBytes: number): Library {
  const requirements = requirementsFrom(library.needs, wanted, shards);
  requirements.weightsBytes += drafterBytes;
  const { features, maxBindingBytes } = requirements;
  return { ...library, needs: { ...library.needs, features, maxBindingBytes }, requirements };
}

function requirementsFrom(needs: Needs, wanted: Fields, shards: readonly Shard[]): Requirements {
  const tensors = shards.flatMap((shard) => shard.tensors);
  const bytes = (name: string) => wanted.count(name, 0, MOST_BYTES, 0);
  const usesF16 = tensors.some((tensor) => tensor.dtype === "float16");
  return {
    features: wanted.has("features") ? [...needs.features] : usesF16 ? ["shader-f16"] : [],
    subgroupSize: needs.subgroupSize,
    maxBindingBytes: needs.maxBindingBytes || tensors.reduce((most, { nbytes }) => Math.max(most, nbytes), 0),
    weightsBytes: bytes("weights_bytes") || tensors.reduce((sum, { nbytes }) => sum + nbytes, 0),
    kvSlidingBytes: bytes("kv_sliding_bytes"),
    kvFullBytes: bytes("kv_full_bytes"),
    activationBytes: bytes("activation_bytes"),
    hostTableBytes: bytes("host_table_bytes"),
  };
}

/** A small file, read no further than one may be large, and who answered. */
async function fetchBytes(url: string): Promise<{ data: Uint8Array<ArrayBuffer>; origin: string }> {
  const response = await fetchChecked(url);
  const tooLarge = new UserError(
    `${url} is larger than ${formatBytes(LARGEST_SMALL_FILE)}.`,
    "No package has such a file. Does the address name a package's folder?",
  );
  const data = await readSmall(response, url, LARGEST_SMALL_FILE, tooLarge);
  return { data, origin: new URL(response.url || url).origin };
}

/** The hub's refusals give little detail: what they mean for a model that was asked for by its id. */
function inWordsOfTheHub(error: unknown, url: string): unknown {
  const model = hubModelOf(url);
  if (!model || !(error instanceof Refused)) return error;
  if (error.status === 404) {
    return new UserError(
      `${model.id} on the hub holds no package for browsers at revision ${model.revision}.`,
      `If it is a checkpoint, compile it (gemma4-compile ${model.id} -o my-package) and open what that writes.`,
    );
  }
  if (error.status !== 401 && error.status !== 403) return error;
  return new UserError(
    `The hub does not hand out ${model.id} (${error.status}).`,
    "There is no such model, or it is private or asks for a licence; this page reads public ones only.",
  );
}
