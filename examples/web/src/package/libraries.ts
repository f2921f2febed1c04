// The model libraries of a package, of which one is downloaded: the one that is right and fastest on this device.
import { chooseAmong, librariesOf, type WebLibrary } from "gemma4-web/choose";
import { keyOf, openCache } from "../download/cache";
import { fetchChecked } from "../download/fetch";
import type { Fields } from "./json_fields";
import type { Package, Requirements } from "./package";
import { type Device, fitting } from "./requirements";
import { UserError } from "./user_error";

const MOST_LIBRARIES = 64;

/** A library as a package lists it: `wanted` has what it needs of memory, too. */
export interface ListedLibrary extends WebLibrary {
  wanted: Fields;
}

/** A library for browsers, with its own requirements. */
export interface Library extends WebLibrary {
  requirements: Requirements;
}

/** Which library it is, and why. */
export interface LibraryChoice {
  name: string;
  why: string;
  /** Whether the person fixed it. */
  isFixed: boolean;
}

/**
 * The libraries of `provenance.json` for browsers, and the files of all; a package without a list has its main one.
 *
 * Throws a UserError for a damaged list, or one that has none for browsers.
 */
export function readLibraries(record: Fields): { web: ListedLibrary[]; files: Set<string> } {
  const libraries = inPlainWords(() => librariesOf(record.value));
  const listed = record.objects("libraries", MOST_LIBRARIES);
  const wanted = (file: string) => {
    const entry = listed.find((each) => each.raw("file") === file) ?? record.object("build");
    return entry.object("requirements");
  };
  const web = libraries.map((library) => ({ ...library, wanted: wanted(library.file) }));
  const all = listed.length ? listed.map((entry) => entry.fileName("file")) : web.map(({ file }) => file);
  return { web, files: new Set(all) };
}

/** What gemma4-web throws has what to do in its second line. */
function inPlainWords<T>(action: () => T): T {
  try {
    return action();
  } catch (error) {
    throw wordsOf(error);
  }
}

function wordsOf(error: unknown): UserError {
  const [message, hint] = String((error as Error).message).split("\n");
  return new UserError(message!, hint ?? "Update the browser and the graphics driver.");
}

/** The same package with another of its libraries. */
export function withLibrary(pack: Package, name: string): Package {
  const library = pack.libraries.find((each) => each.name === name)!;
  const files = pack.files
    .filter((file) => file.name !== pack.library)
    .concat({ name: library.file, nbytes: library.nbytes, sha256: library.sha256 });
  const totalBytes = files.reduce((sum, { nbytes }) => sum + nbytes, 0);
  return { ...pack, library: library.file, requirements: library.requirements, files, totalBytes };
}

/**
 * The package with the library to use here; `fixed`: the one that the person wants.
 *
 * Where none fits it keeps its main one, and `judge` says what is missing. Throws a UserError where all compute wrong.
 */
export async function choose(
  pack: Package,
  device: Device,
  fixed: string | undefined,
): Promise<{ pack: Package; choice: LibraryChoice }> {
  const taken = pack.libraries.find(({ name }) => name === fixed);
  if (taken) {
    const why = "chosen in the settings";
    return { pack: withLibrary(pack, taken.name), choice: { name: taken.name, why, isFixed: true } };
  }
  const fits = fitting(pack, device);
  if (fits.length === 0) {
    const main = pack.libraries.find(({ file }) => file === pack.library)!;
    return { pack, choice: { name: main.name, why: "none fits this device", isFixed: false } };
  }
  try {
    const options = { fast: device.isDriven, fetch: (url: string) => storedOrFetched(pack, url) };
    // Without a network only what is downloaded can be had.
    const stored = pack.offline ? (await storedLibraries(pack)).filter((name) => fits.includes(name)) : [];
    const candidates = stored.length ? pack.libraries.filter(({ name }) => stored.includes(name)) : pack.libraries;
    const { name, why } = await chooseAmong(pack.url, candidates, undefined, options);
    const reason = stored.length === 1 ? "the one that is downloaded, while there is no network" : why;
    return { pack: withLibrary(pack, name), choice: { name, why: reason, isFixed: false } };
  } catch (error) {
    throw wordsOf(error);
  }
}

/** Names of the libraries whose files are downloaded. */
async function storedLibraries(pack: Package): Promise<string[]> {
  const cache = await openCache(pack, pack.library);
  const found = await Promise.all(pack.libraries.map(({ file }) => cache.match(keyOf(pack, file))));
  return pack.libraries.filter((_, index) => found[index]).map(({ name }) => name);
}

/** A library's file, from the downloads if it lies there. */
async function storedOrFetched(pack: Package, url: string): Promise<Response> {
  const name = url.slice(pack.url.length);
  const cache = await openCache({ ...pack, library: name }, name);
  return (await cache.match(keyOf(pack, name))) ?? fetchChecked(url);
}
