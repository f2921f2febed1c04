// The client's caches, and which file belongs where in them.
import { forgetBeginnings, forgetTables } from "gemma4-web/choose";
import { APPLICATION } from "../package/beginnings";
import { PACKAGES, TENSOR_CACHE, type Package } from "../package/package";
import { PROVENANCE } from "../package/provenance";
import { openStorage } from "./storage";

const CONFIG_SCOPE = "webllm/config";
const MODEL_SCOPE = "webllm/model";
const LIBRARY_SCOPE = "webllm/wasm";
/** After `resolve/`: a version, and the name of a file. */
const VERSIONED = /^[0-9a-f]{16}\/[^/]+$/;
/** A file as the page stores it, behind its package's folder; other applications of the origin have other addresses. */
const STORED = /^(.*\/)resolve\/[0-9a-f]{16}\/[^/]+$/;
/** Set once beginnings are gone that an earlier version of the page kept without its name. */
const NAMED = "gemma4-beginnings-named";
const SCOPES = [CONFIG_SCOPE, MODEL_SCOPE, LIBRARY_SCOPE];

/**
 * Where the client looks for a package's files. The version in it keeps it from mixing files of two
 * compilations, and `/resolve/` keeps it from adding a path of its own.
 */
export function clientUrl(pack: Pick<Package, "url" | "version">): string {
  return new URL(`resolve/${pack.version}/`, pack.url).href;
}

export async function openCache(pack: Package, name: string): Promise<Cache> {
  return openStorage(scopeOf(pack, name));
}

export function keyOf(pack: Pick<Package, "url" | "version">, name: string): string {
  return clientUrl(pack) + name;
}

function scopeOf(pack: Package, name: string): string {
  if (name === pack.library) return LIBRARY_SCOPE;
  const ofModel =
    pack.shards.has(name) || pack.drafter.has(name) || name === TENSOR_CACHE || name.startsWith("tokenizer");
  return ofModel ? MODEL_SCOPE : CONFIG_SCOPE;
}

/** Bytes of the files that are not there yet. */
export async function missingBytes(pack: Package): Promise<number> {
  const present = new Set<string>();
  for (const scope of SCOPES) {
    for (const { url } of await (await openStorage(scope)).keys()) present.add(url);
  }
  return pack.files.filter((file) => !present.has(keyOf(pack, file.name))).reduce((sum, file) => sum + file.nbytes, 0);
}

export async function dropOtherVersions(pack: Package): Promise<void> {
  const family = new URL("resolve/", pack.url).href;
  await drop(
    (url) => url.startsWith(family) && VERSIONED.test(url.slice(family.length)) && !url.startsWith(clientUrl(pack)),
  );
}

/** Whether the small files of a package are kept: those of one that somebody agreed to open, until it is removed. */
export async function isKept(url: string): Promise<boolean> {
  return (await (await openStorage(PACKAGES)).match(url + PROVENANCE)) !== undefined;
}

/** Removes all that was downloaded from a package's folder; first what tells that somebody agreed to it. */
export async function removePackage(url: string): Promise<void> {
  const known = await openStorage(PACKAGES);
  for (const request of await known.keys()) {
    // Files of the folder itself: another package may lie below it.
    if (request.url.startsWith(url) && !request.url.slice(url.length).includes("/")) await known.delete(request);
  }
  const family = new URL("resolve/", url).href;
  await drop((each) => each.startsWith(family) && VERSIONED.test(each.slice(family.length)));
  await tidy();
}

export async function removeAllPackages(): Promise<void> {
  await caches.delete(PACKAGES);
  await drop((url) => STORED.test(url));
  await tidy();
}

/**
 * Removes tables and beginnings of conversations of packages that are not stored any more, and beginnings of others than these
 * chats; what is in use goes the next time.
 */
export async function tidy(chats?: readonly string[]): Promise<void> {
  const butPackages = await storedPackages();
  await forgetTables(butPackages).catch(() => undefined); // there is no storage
  const others = { butPackages, ...(chats && { butOwners: chats }) };
  await forgetBeginnings({ application: APPLICATION, ...others }).catch(() => undefined);
  if (chats?.length) await forgetUnnamed(chats);
}

/** An earlier version of the page kept beginnings among those of applications without a name, which only its chats' are of. */
async function forgetUnnamed(owners: readonly string[]): Promise<void> {
  try {
    if (localStorage.getItem(NAMED)) return;
    await forgetBeginnings({ owners });
    localStorage.setItem(NAMED, "1");
  } catch {
    // Storage is off, or another tab is at work there: the next time.
  }
}

/** The folders of which anything is stored. */
export async function storedPackages(): Promise<string[]> {
  const folders = new Set<string>();
  for (const scope of SCOPES) {
    for (const { url } of await (await openStorage(scope)).keys()) {
      const folder = STORED.exec(url)?.[1];
      if (folder !== undefined) folders.add(folder);
    }
  }
  return [...folders].sort();
}

async function drop(which: (url: string) => boolean): Promise<void> {
  for (const scope of SCOPES) {
    const cache = await openStorage(scope);
    for (const request of await cache.keys()) {
      if (which(request.url)) await cache.delete(request);
    }
  }
}
