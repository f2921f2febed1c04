// A package's own description, read before anything large is downloaded.
import { fetchChecked, Refused, Unreachable } from "../download/fetch";
import { sha256 } from "../download/hash";
import { type MediaInputs, mediaInputsOf } from "../media/inputs";
import { hubModelOf } from "./address";
import { UserError } from "./user_error";

export interface PackageFile {
  name: string;
  nbytes: number;
  sha256: string;
}

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
}

export interface Package {
  /** Folder of the files, with a slash at the end. */
  url: string;
  /** Changes with any file of the package. */
  version: string;
  /** Where it came from, for people: `tiny`, `google/gemma-4-E2B-it`, the name of a folder. */
  title: string;
  isTiny: boolean;
  library: string;
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
  /** What the model's own template puts in front of a reply while thinking is off. */
  replyOpening: string;
  thinks: boolean;
  usesTools: boolean;
  /** Pictures and sounds that it takes. */
  media: MediaInputs;
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

export const MANIFEST = "mlc-model-manifest.json";
export const TENSOR_CACHE = "tensor-cache.json";
const OF_DRAFTER = /^(drafter-tensor-cache\.json|params_shard_drafter_\d+\.bin)$/;
const CHAT_CONFIG = "mlc-chat-config.json";
const PROVENANCE = "provenance.json";
const TEMPLATE = "chat_template.jinja";
const MANIFEST_SCHEMA = "mlc.model-package";
const PACKAGE_SCHEMA = "gemma4_compile.package";
const SCHEMA_VERSION = 1;
/** The small files that were read last, by the package's address: for starting without a network. */
export const PACKAGES = "gemma4/packages";

interface Provenance {
  schema: string;
  schema_version: number;
  library: string | null;
  build: {
    source?: { kind?: string; model?: string };
    recipe?: string;
    requirements?: Record<string, unknown>;
    drops_padding?: boolean;
  };
  files: Record<string, { nbytes: number; sha256: string }>;
}

interface Manifest {
  schema?: string;
  tasks?: { "chat.completions"?: { inputs?: unknown } };
}

interface TensorCache {
  records: { dataPath: string; records: { dtype: string; nbytes: number }[] }[];
}

interface ChatConfig {
  quantization: string;
  context_window_size: number;
  temperature?: number;
  top_p?: number;
  repetition_penalty?: number;
  frequency_penalty?: number;
  presence_penalty?: number;
  conv_template?: { role_empty_sep?: string };
}

/** Reads the small files, from the server or, if it cannot be reached, as they were last time. */
export async function readPackage(url: string): Promise<Package> {
  const names = [PROVENANCE, MANIFEST, CHAT_CONFIG, TENSOR_CACHE];
  const cache = await caches.open(PACKAGES);
  try {
    const files = new Map<string, Uint8Array<ArrayBuffer>>();
    for (const name of names) files.set(name, await fetchBytes(url + name));
    const template = declaredFiles(files.get(PROVENANCE)!)[TEMPLATE] ? await fetchBytes(url + TEMPLATE) : undefined;
    if (template) files.set(TEMPLATE, template);
    const pack = await describe(url, files, false);
    for (const [name, data] of files) await cache.put(url + name, new Response(data)).catch(() => undefined);
    return pack;
  } catch (error) {
    if (!(error instanceof Unreachable)) throw inWordsOfTheHub(error, url);
    const files = new Map<string, Uint8Array<ArrayBuffer>>();
    for (const name of [...names, TEMPLATE]) {
      const kept = await cache.match(url + name);
      if (kept) files.set(name, new Uint8Array(await kept.arrayBuffer()));
    }
    if (names.some((name) => !files.has(name))) throw error;
    return describe(url, files, true);
  }
}

/** Checks the small files against each other and puts together what the page has to know. */
export async function describe(
  url: string,
  files: ReadonlyMap<string, Uint8Array<ArrayBuffer>>,
  offline: boolean,
): Promise<Package> {
  const record = files.get(PROVENANCE)!;
  const provenance = parse<Provenance>(record, PROVENANCE);
  if (provenance.schema !== PACKAGE_SCHEMA || provenance.schema_version !== SCHEMA_VERSION) {
    throw new UserError(
      `${PROVENANCE} is of an unknown kind: ${provenance.schema} ${provenance.schema_version}.`,
      `This page reads ${PACKAGE_SCHEMA} ${SCHEMA_VERSION}: compile the package again, or use the page of its version.`,
    );
  }
  if (!provenance.library?.endsWith(".wasm")) {
    throw new UserError("The package holds no library for browsers.", "Compile it with --target webgpu.");
  }
  for (const [name, data] of files) {
    const declared = provenance.files[name];
    if (name !== PROVENANCE && declared && (await sha256(data)) !== declared.sha256) {
      throw new UserError(
        `${name} is not the file that ${PROVENANCE} names.`,
        "The package on the server is damaged or from two compilations; upload it again.",
      );
    }
  }
  const manifest = parse<Manifest>(files.get(MANIFEST)!, MANIFEST);
  if (manifest.schema !== MANIFEST_SCHEMA || !("chat.completions" in (manifest.tasks ?? {}))) {
    throw new UserError(`${MANIFEST} names no model that can chat.`, "Does the address name a package's folder?");
  }
  const config = parse<ChatConfig>(files.get(CHAT_CONFIG)!, CHAT_CONFIG);
  const shards = parse<TensorCache>(files.get(TENSOR_CACHE)!, TENSOR_CACHE).records;
  const template = new TextDecoder().decode(files.get(TEMPLATE));
  const list = Object.entries(provenance.files).map(([name, file]) => ({ name, ...file }));
  const drafter = new Set(list.map(({ name }) => name).filter((name) => OF_DRAFTER.test(name)));
  const requirements = requirementsFrom(provenance, shards);
  requirements.weightsBytes += drafterBytes({ files: list, drafter });
  return {
    url,
    version: (await sha256(record)).slice(0, 16),
    title: titleFrom(provenance, url),
    isTiny: provenance.build.source?.kind === "tiny",
    library: provenance.library,
    recipe: provenance.build.recipe ?? config.quantization,
    contextLength: config.context_window_size,
    files: list,
    totalBytes: list.reduce((sum, file) => sum + file.nbytes, 0),
    shards: new Set(shards.map((shard) => shard.dataPath)),
    drafter,
    hasDrafter: drafter.size > 0,
    requirements,
    sampling: {
      temperature: config.temperature ?? 1,
      topP: config.top_p ?? 1,
      repetitionPenalty: config.repetition_penalty ?? 1,
      frequencyPenalty: config.frequency_penalty ?? 0,
      presencePenalty: config.presence_penalty ?? 0,
    },
    replyOpening: config.conv_template?.role_empty_sep ?? "",
    thinks: provenance.build.source?.kind !== "tiny" && template.includes("<|think|>"),
    usesTools: template.includes("<|tool_response>"),
    media: mediaInputsOf(manifest.tasks?.["chat.completions"]?.inputs, provenance.build.drops_padding === true),
    offline,
  };
}

/** What its drafter adds to a download, and about as much to the graphics memory. */
export function drafterBytes({ files, drafter }: Pick<Package, "files" | "drafter">): number {
  return files.filter(({ name }) => drafter.has(name)).reduce((sum, { nbytes }) => sum + nbytes, 0);
}

/** The same package as if it had no drafter. */
export function withoutDrafter(pack: Package): Package {
  const files = pack.files.filter(({ name }) => !pack.drafter.has(name));
  const bytes = drafterBytes(pack);
  const requirements = { ...pack.requirements, weightsBytes: pack.requirements.weightsBytes - bytes };
  return { ...pack, files, totalBytes: pack.totalBytes - bytes, drafter: new Set(), requirements };
}

function titleFrom({ build }: Provenance, url: string): string {
  const { kind, model } = build.source ?? {};
  if (model) return model.split("/").pop()!;
  if (kind === "tiny") return "tiny";
  return (
    decodeURIComponent(new URL(url).pathname.replace(/\/resolve\/[^/]+\/$/, "/"))
      .split("/")
      .at(-2) || "model"
  );
}

function requirementsFrom({ build }: Provenance, shards: TensorCache["records"]): Requirements {
  const tensors = shards.flatMap((shard) => shard.records);
  const wanted = build.requirements ?? {};
  const number = (name: string) => (typeof wanted[name] === "number" ? (wanted[name] as number) : 0);
  const usesF16 = tensors.some((tensor) => tensor.dtype === "float16");
  return {
    features: Array.isArray(wanted["features"]) ? (wanted["features"] as string[]) : usesF16 ? ["shader-f16"] : [],
    subgroupSize: number("subgroup_size"),
    maxBindingBytes: number("max_binding_bytes") || Math.max(0, ...tensors.map((tensor) => tensor.nbytes)),
    weightsBytes: number("weights_bytes") || tensors.reduce((sum, tensor) => sum + tensor.nbytes, 0),
    kvSlidingBytes: number("kv_sliding_bytes"),
    kvFullBytes: number("kv_full_bytes"),
    activationBytes: number("activation_bytes"),
  };
}

function declaredFiles(record: Uint8Array<ArrayBuffer>): Provenance["files"] {
  const { files } = parse<Provenance>(record, PROVENANCE);
  if (!files) throw new UserError(`${PROVENANCE} names no files.`, "Does the address name a package's folder?");
  return files;
}

async function fetchBytes(url: string): Promise<Uint8Array<ArrayBuffer>> {
  return new Uint8Array(await (await fetchChecked(url)).arrayBuffer());
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

function parse<T>(data: Uint8Array<ArrayBuffer>, name: string): T {
  try {
    return JSON.parse(new TextDecoder().decode(data)) as T;
  } catch {
    throw new UserError(`${name} is no JSON file.`, "Does the address name a package's folder?");
  }
}
