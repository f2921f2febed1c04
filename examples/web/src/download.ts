// Downloads a package into the cache that the client reads, file by file, checking every hash: the
// client itself would take a shard as it comes.
import { fetchChecked, sha256, type Package, type PackageFile } from "./package";
import { UserError } from "./user_error";

const CONFIG_SCOPE = "webllm/config";
const LIBRARY_SCOPE = "webllm/wasm";
const MODEL_SCOPE = "webllm/model";
const SCOPES = [CONFIG_SCOPE, LIBRARY_SCOPE, MODEL_SCOPE];
const PARALLEL = 4;

export type Progress = (doneBytes: number, totalBytes: number) => void;

/**
 * Where the client looks for a package's files. The version in it keeps it from mixing files of two
 * compilations, and `/resolve/` keeps it from adding a path of its own.
 */
export function clientUrl(pack: Package): string {
  return new URL(`resolve/${pack.version}/`, pack.url).href;
}

export async function download(pack: Package, report: Progress, signal: AbortSignal): Promise<void> {
  await dropOtherVersions(pack);
  const total = pack.files.reduce((sum, file) => sum + file.nbytes, 0);
  let done = 0;
  const add = (bytes: number) => report((done += bytes), total);
  const queue = [...pack.files];
  const work = async () => {
    for (let file = queue.shift(); file; file = queue.shift()) {
      await downloadFile(pack, file, add, signal);
    }
  };
  await Promise.all(Array.from({ length: PARALLEL }, work));
}

async function downloadFile(
  pack: Package,
  file: PackageFile,
  add: (bytes: number) => void,
  signal: AbortSignal,
): Promise<void> {
  const cache = await caches.open(scopeOf(pack, file.name));
  const key = new URL(file.name, clientUrl(pack)).href;
  if (await cache.match(key)) {
    add(file.nbytes);
    return;
  }
  const response = await fetchChecked(new URL(file.name, pack.url).href, signal);
  const data = await read(response, file, add);
  if ((await sha256(data)) !== file.sha256) {
    throw new UserError(
      `${file.name} arrived damaged: it is not the file that provenance.json names.`,
      "Try again; if it stays so, the package on the server is damaged.",
    );
  }
  const type = response.headers.get("content-type") ?? "application/octet-stream";
  await cache.put(key, new Response(data, { headers: { "content-type": type } }));
}

async function read(
  response: Response,
  file: PackageFile,
  add: (bytes: number) => void,
): Promise<Uint8Array<ArrayBuffer>> {
  const data = new Uint8Array(file.nbytes);
  let filled = 0;
  for (const reader = response.body!.getReader(); ; ) {
    const { done, value } = await reader.read();
    if (done) break;
    if (filled + value.length > data.length) {
      await reader.cancel();
      filled = Infinity;
      break;
    }
    data.set(value, filled);
    filled += value.length;
    add(value.length);
  }
  if (filled !== file.nbytes) {
    throw new UserError(
      `${file.name} has another length than provenance.json says.`,
      "The package on the server is incomplete or from two compilations; upload it again.",
    );
  }
  return data;
}

function scopeOf(pack: Package, name: string): string {
  if (name === pack.library) return LIBRARY_SCOPE;
  const ofModel = pack.shards.has(name) || name === "tensor-cache.json" || name.startsWith("tokenizer");
  return ofModel ? MODEL_SCOPE : CONFIG_SCOPE;
}

async function dropOtherVersions(pack: Package): Promise<void> {
  const family = new URL("resolve/", pack.url).href;
  for (const scope of SCOPES) {
    const cache = await caches.open(scope);
    for (const { url } of await cache.keys()) {
      if (url.startsWith(family) && !url.startsWith(clientUrl(pack))) await cache.delete(url);
    }
  }
}
