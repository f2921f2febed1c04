// What a package says about itself, read before anything large is downloaded.
import { UserError } from "./user_error";

export interface PackageFile {
  name: string;
  nbytes: number;
  sha256: string;
}

export interface Package {
  /** Folder of the files, with a slash at the end. */
  url: string;
  /** Changes with any file of the package. */
  version: string;
  library: string;
  quantization: string;
  contextLength: number;
  files: PackageFile[];
  /** Names of the files that hold weights. */
  shards: Set<string>;
  usesF16: boolean;
  largestTensorBytes: number;
}

export const MANIFEST = "mlc-model-manifest.json";
const CHAT_CONFIG = "mlc-chat-config.json";
const TENSOR_CACHE = "tensor-cache.json";
const PROVENANCE = "provenance.json";

interface Provenance {
  library: string | null;
  files: Record<string, { nbytes: number; sha256: string }>;
}

interface TensorCache {
  records: { dataPath: string; records: { dtype: string; nbytes: number }[] }[];
}

interface ChatConfig {
  quantization: string;
  context_window_size: number;
}

/** Turns what a user types into the folder's URL. A model page of the hub stands for its files. */
export function packageUrl(text: string): string {
  const url = new URL(text, location.href);
  url.hash = "";
  url.search = "";
  if (!url.pathname.endsWith("/")) url.pathname += "/";
  if (url.hostname === "huggingface.co" && !url.pathname.includes("/resolve/")) {
    url.pathname += "resolve/main/";
  }
  return url.href;
}

export async function readPackage(url: string): Promise<Package> {
  const record = await fetchBytes(new URL(PROVENANCE, url).href);
  const provenance = parse<Provenance>(record, PROVENANCE);
  if (!provenance.files || !provenance.library?.endsWith(".wasm")) {
    throw new UserError(
      `The package at ${url} holds no library for browsers.`,
      "Compile it with --target webgpu.",
    );
  }
  const config = await fetchJson<ChatConfig>(url, CHAT_CONFIG);
  const shards = (await fetchJson<TensorCache>(url, TENSOR_CACHE)).records;
  const tensors = shards.flatMap((shard) => shard.records);
  return {
    url,
    version: (await sha256(record)).slice(0, 16),
    library: provenance.library,
    quantization: config.quantization,
    contextLength: config.context_window_size,
    files: Object.entries(provenance.files).map(([name, file]) => ({ name, ...file })),
    shards: new Set(shards.map((shard) => shard.dataPath)),
    usesF16: tensors.some((tensor) => tensor.dtype === "float16"),
    largestTensorBytes: Math.max(...tensors.map((tensor) => tensor.nbytes)),
  };
}

export async function sha256(data: Uint8Array<ArrayBuffer>): Promise<string> {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", data));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export async function fetchChecked(url: string, signal?: AbortSignal): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(url, signal ? { signal, cache: "no-cache" } : { cache: "no-cache" });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new UserError(
      `${url} cannot be reached.`,
      "Check the address; another site has to allow this page with an Access-Control-Allow-Origin header.",
    );
  }
  if (!response.ok) {
    throw new UserError(
      `${url} answers ${response.status} ${response.statusText}.`,
      "Give the folder that gemma4-compile wrote, with all of its files.",
    );
  }
  return response;
}

async function fetchBytes(url: string): Promise<Uint8Array<ArrayBuffer>> {
  return new Uint8Array(await (await fetchChecked(url)).arrayBuffer());
}

async function fetchJson<T>(url: string, name: string): Promise<T> {
  return parse<T>(await fetchBytes(new URL(name, url).href), name);
}

function parse<T>(data: Uint8Array<ArrayBuffer>, name: string): T {
  try {
    return JSON.parse(new TextDecoder().decode(data)) as T;
  } catch {
    throw new UserError(`${name} is no JSON file.`, "Does the address name a package's folder?");
  }
}
