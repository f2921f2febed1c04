// The weights of a package's drafter: fetched, compared with what the library takes, and put onto its device.
import { Calls } from "../library/calls";
import type { DrafterOptions, FetchFile } from "./drafter_options";
import { hexDigest } from "../kept";
import type { Library } from "../library/library";
import type { Native } from "../gpu/native";
import { Drafter } from "./drafter_state";
import { makeRoundPipelines, MAX_DRAFTS, MAX_ROWS } from "./next_round";
import { because, counts } from "../stats";

const INDEX_FILE = "drafter-tensor-cache.json";
const PROVENANCE_FILE = "provenance.json";
const CACHE = "gemma4-web/drafter";

interface Parameter {
  readonly name: string;
  readonly shape: readonly number[];
  readonly dtype: string;
}

interface Weight extends Parameter {
  readonly format: string;
  readonly byteOffset: number;
  readonly nbytes: number;
}

interface Shard {
  readonly dataPath: string;
  readonly nbytes: number;
  readonly records: readonly Weight[];
}

interface Provenance {
  readonly files: Readonly<Record<string, { readonly sha256: string }>>;
}

/** Weights are kept by their contents. */
const keyOf = (url: string, sha256: string): string => `${url}?${sha256}`;

async function cached(url: string, sha256?: string): Promise<Response> {
  if (typeof caches === "undefined") return fetch(url);
  const cache = await caches.open(CACHE);
  // A list is the server's, and the kept one only where there is no server.
  const key = sha256 === undefined ? url : keyOf(url, sha256);
  if (sha256 !== undefined) {
    const kept = await cache.match(key);
    if (kept) return kept;
  }
  const response = await fetch(url).catch(async (error: unknown) => {
    const kept = await cache.match(key);
    if (kept) return kept;
    throw error;
  });
  if (response.ok) await cache.put(key, response.clone()).catch(() => undefined); // no room: fetched again next time
  return response;
}

/** Removes what the cache keeps of an earlier package at `base`: all but these files. */
async function dropOthers(base: string, files: readonly string[]): Promise<void> {
  if (typeof caches === "undefined") return;
  const cache = await caches.open(CACHE);
  const folder = new Request(base).url;
  const wanted = new Set(files.map((file) => new Request(`${base}${file}`).url));
  for (const request of await cache.keys()) {
    const name = request.url.startsWith(folder) ? request.url.slice(folder.length) : "/";
    if (!name.includes("/") && !wanted.has(request.url)) await cache.delete(request);
  }
}

/** What came is not the file: the next try shall not find it again. */
async function drop(url: string, sha256: string): Promise<void> {
  if (typeof caches !== "undefined") await (await caches.open(CACHE)).delete(keyOf(url, sha256));
}

async function opened(get: FetchFile, url: string, sha256?: string): Promise<Response> {
  const response = await get(url, sha256);
  if (!response.ok) throw new Error(`${url}: the server answered ${response.status}`);
  return response;
}

async function list(get: FetchFile, url: string): Promise<unknown> {
  const response = await opened(get, url);
  return response.json().catch(() => {
    throw new Error(`${url}: what the server answered is no JSON`);
  });
}

/** The bytes of a file, if they are those that the package was compiled with. */
async function verified(get: FetchFile, base: string, shard: Shard, sha256: string): Promise<Uint8Array> {
  const { dataPath, nbytes } = shard;
  const url = `${base}${dataPath}`;
  const bytes = new Uint8Array(await (await opened(get, url, sha256)).arrayBuffer());
  const found = await hexDigest(bytes);
  if (found === sha256) return bytes;
  if (get === cached) await drop(url, sha256).catch(() => undefined);
  if (bytes.byteLength !== nbytes) throw new Error(`${dataPath}: expected ${nbytes} bytes, found ${bytes.byteLength}`);
  throw new Error(`${dataPath}: expected sha256 ${sha256}, found ${found}`);
}

/** Throws for what is no shard: its name becomes an address and a key of the cache, its sizes become buffers. */
function checkShard(shard: Shard, files: Provenance["files"]): void {
  const { dataPath, nbytes, records } = shard ?? {};
  if (typeof dataPath !== "string" || !/^\w[\w.-]*$/.test(dataPath))
    throw new Error(`${INDEX_FILE}: expected plain file names, found ${JSON.stringify(dataPath)}`);
  if (typeof files !== "object" || files === null || !Object.hasOwn(files, dataPath))
    throw new Error(`${PROVENANCE_FILE} does not know ${dataPath}`);
  if (typeof files[dataPath]?.sha256 !== "string") throw new Error(`${PROVENANCE_FILE} has no sha256 of ${dataPath}`);
  const isSize = (value: unknown) => Number.isSafeInteger(value) && (value as number) >= 0;
  const fits = (weight: Weight) =>
    weight && isSize(weight.byteOffset) && isSize(weight.nbytes) && weight.byteOffset + weight.nbytes <= nbytes;
  const isNamed = (weight: Weight) =>
    typeof weight.name === "string" && Array.isArray(weight.shape) && weight.shape.every(isSize);
  // What is written beyond a buffer's end takes the device with it.
  const fills = ({ shape, dtype, nbytes: size }: Weight) =>
    Number(/^[a-z]+(\d+)$/.exec(dtype)?.[1]) * shape.reduce((product, each) => product * each, 1) === size * 8;
  if (!isSize(nbytes) || !Array.isArray(records) || !records.every((each) => fits(each) && isNamed(each)))
    throw new Error(`${INDEX_FILE}: ${dataPath}: expected weights that lie inside of it`);
  const odd = records.find((each) => !fills(each));
  if (odd) throw new Error(`${INDEX_FILE}: ${odd.name}: expected as many bytes as ${describe(odd)} has`);
}

const describe = ({ name, shape, dtype }: Parameter): string => `${name} ${shape.join("x")} ${dtype}`;

interface Metadata {
  prefill_chunk_size?: number;
  drafter?: { params?: Parameter[] };
}

const metadataOf = (library: Library) => JSON.parse(library.readMetadata() ?? "{}") as Metadata;

/** What a library takes for its drafter, in its order; nothing if it has none. */
const parametersOf = (library: Library): readonly Parameter[] => metadataOf(library).drafter?.params ?? [];

/** Throws where there is nothing to load a drafter for any more: asked again after every wait. */
function check(library?: Library): void {
  if (!counts.enabled) throw new Error("the module is switched off, or there is no WebGPU in this thread");
  if (library?.device?.isLost) throw new Error("the model went, with its device, before its drafter was loaded");
}

const bytesOnDevice = ({ nbytes }: Weight): number => Math.ceil(nbytes / 4) * 4; // what the queue takes is whole words

/** Throws where the device has no room for weights: the client's runtime gives up a device that has none for a tensor. */
async function checkRoom({ createBuffer, pushErrorScope, popErrorScope }: Native, weights: Weight[]): Promise<void> {
  const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
  pushErrorScope("out-of-memory");
  pushErrorScope("validation");
  const buffers = weights.map((weight) => createBuffer({ size: bytesOnDevice(weight), usage }));
  const errors = await Promise.all([popErrorScope(), popErrorScope()]);
  for (const buffer of buffers) buffer.destroy();
  for (const error of errors) if (error) throw new Error(`the device has no room for it: ${error.message}`);
}

/** Drafters on their way to their libraries. */
const underWay = new WeakMap<Library, Promise<void>>();

/**
 * Loads the drafter of the package at `url` for the library that takes it; throws where that cannot be. Where it is in
 * use already, or on its way, only the number of drafts changes.
 */
export async function loadDrafter(libraries: readonly Library[], url: string, options: DrafterOptions): Promise<void> {
  const { drafts } = options;
  if (drafts !== undefined && !(Number.isInteger(drafts) && drafts >= 0 && drafts <= MAX_DRAFTS))
    throw new Error(`drafts: expected 0 to ${MAX_DRAFTS}, found ${drafts}`);
  check();
  const get = options.fetch ?? cached;
  const base = url.endsWith("/") ? url : `${url}/`;
  const { records: shards } = ((await list(get, `${base}${INDEX_FILE}`)) ?? {}) as { records: Shard[] };
  if (!Array.isArray(shards)) throw new Error(`${base}${INDEX_FILE} lists no shards`);
  const { files = {} } = ((await list(get, `${base}${PROVENANCE_FILE}`)) ?? {}) as Provenance;
  for (const shard of shards) checkShard(shard, files);
  check();
  const stored = new Set(shards.flatMap(({ records }) => records.map(describe)));
  const takers = libraries
    .filter(({ device }) => device && !device.isLost)
    .filter((candidate) => {
      const wanted = parametersOf(candidate);
      return wanted.length > 0 && wanted.length === stored.size && wanted.every((one) => stored.has(describe(one)));
    });
  const library = takers.find((one) => Drafter.of(one).weights === 0 && !underWay.has(one)) ?? takers[0];
  if (!library) throw new Error("no loaded model takes these weights: load the package first, of the same build");
  const drafter = Drafter.of(library);
  drafter.drafts = drafts;
  drafter.mostDrafts = Math.min(MAX_DRAFTS, (metadataOf(library).prefill_chunk_size ?? MAX_ROWS) - 1);
  if (drafter.mostDrafts < 1) throw new Error("chunks of one token leave no room for drafts");
  // Who asked before hears of a failure, which is no reason not to try again: its files may have come another way.
  for (let other = underWay.get(library); other; other = underWay.get(library)) await other.catch(() => undefined);
  if (drafter.weights !== 0) return;
  const loading = load(library, get, base, shards, files);
  underWay.set(library, loading);
  await loading.finally(() => underWay.delete(library));
}

async function load(
  library: Library,
  get: FetchFile,
  base: string,
  shards: readonly Shard[],
  files: Provenance["files"],
): Promise<void> {
  const drafter = Drafter.of(library);
  drafter.roundPipelines ??= await makeRoundPipelines(library.device!.native);
  await checkRoom(
    library.device!.native,
    shards.flatMap(({ records }) => records),
  );
  const calls = Calls.of(library);
  const tensors = new Map<string, number>();
  try {
    for (const shard of shards) {
      const bytes = await verified(get, base, shard, files[shard.dataPath]!.sha256);
      check(library);
      for (const weight of shard.records) tensors.set(weight.name, upload(library, calls, weight, bytes));
    }
    drafter.weights = calls.array(parametersOf(library).map(({ name }) => tensors.get(name)!));
    drafter.bytes = shards.reduce((sum, { nbytes }) => sum + nbytes, 0);
    counts.drafterBytes += drafter.bytes;
    void library.device!.device.lost.then(() => drafter.release());
    const names = shards.map(({ dataPath }) => `${dataPath}?${files[dataPath]!.sha256}`);
    if (get === cached) await dropOthers(base, [INDEX_FILE, PROVENANCE_FILE, ...names]).catch(() => undefined);
  } finally {
    calls.release(...tensors.values());
  }
}

function upload(library: Library, calls: Calls, weight: Weight, shard: Uint8Array): number {
  const { name, shape, dtype, format, byteOffset, nbytes } = weight;
  if (format !== "raw") throw new Error(`${name}: stored as ${format}, expected raw`);
  const tensor = calls.tensor(shape, dtype);
  const state = library.bufferOf(tensor);
  if (!state) throw new Error(`${name}: its buffer is not known`);
  const padded = new Uint8Array(bytesOnDevice(weight));
  padded.set(shard.subarray(byteOffset, byteOffset + nbytes));
  library.device!.native.writeBuffer(state.buffer, 0, padded);
  return tensor;
}

/** As `loadDrafter`; false, with the reason in `stats().reasons`, where it cannot be. */
export async function tryDrafter(
  libraries: readonly Library[],
  url: string,
  options: DrafterOptions,
): Promise<boolean> {
  try {
    await loadDrafter(libraries, url, options);
    return true;
  } catch (error) {
    because(`no drafter: ${error instanceof Error ? error.message : String(error)}`);
    return false;
  }
}
