// `models.json` beside the page: the packages that whoever put the page there offers. A page without one has the field for
// an address alone.
import { fetchChecked, readSmall, Refused, Unreachable } from "../download/fetch";
import { packageUrl } from "./address";
import { Fields } from "./json_fields";
import { cleanName } from "./provenance";
import { formatBytes } from "./units";
import { inWords, UserError } from "./user_error";

export const MODELS = "models.json";
const MOST_BYTES = 2 ** 18;
const MOST_MODELS = 1000;
const LONGEST_NAME = 80;
const LONGEST_ADDRESS = 500;
const MODALITIES = ["text", "image", "audio"];
/** A server that does not answer by then is not waited for: the field for an address works without the list. */
const PATIENCE_MS = 4000;

export interface OfferedModel {
  name: string;
  /** As a person would type it. */
  address: string;
  /** What is downloaded; 0: not said. */
  bytes: number;
  /** What it takes of graphics memory; 0: not said. */
  memoryBytes: number;
  modalities: string[];
}

export interface Offer {
  models: OfferedModel[];
  /** Why a list that is there is not shown. */
  fault?: UserError;
}

/** The list beside a page; empty where there is none, or the network is away. */
export async function offeredModels(base: string): Promise<Offer> {
  const tooLong = new UserError(
    `${MODELS} is longer than ${formatBytes(MOST_BYTES)}.`,
    "It lists models, a few lines each.",
  );
  if (navigator.onLine === false) return { models: [] };
  const signal = AbortSignal.timeout(PATIENCE_MS);
  try {
    const url = new URL(MODELS, base).href;
    const response = await fetchChecked(url, { signal });
    // Hosts of pages with one address answer for any file with the page itself.
    if (response.headers.get("content-type")?.includes("html")) return { models: [] };
    return { models: readModels(Fields.parse(await readSmall(response, url, MOST_BYTES, tooLong), MODELS), base) };
  } catch (error) {
    if (signal.aborted || error instanceof Refused || error instanceof Unreachable) return { models: [] };
    if (error instanceof UserError) return { models: [], fault: error };
    throw error;
  }
}

/** The models of a list; a UserError names a field that is wrong. What it does not know of an entry is left aside. */
export function readModels(list: Fields, base: string): OfferedModel[] {
  if (!list.has("models")) throw list.wrong("models", "a list of models", undefined);
  const before = { names: new Set<string>(), urls: new Set<string>() };
  return list.objects("models", MOST_MODELS).map((entry) => {
    const name = cleanName(entry.text("name", "", LONGEST_NAME));
    const address = entry.text("address", "", LONGEST_ADDRESS);
    if (!name) throw entry.wrong("name", "a name", entry.raw("name"));
    if (!address.trim()) throw entry.wrong("address", "a package's address", entry.raw("address"));
    const url = urlOf(entry, address, base);
    if (before.names.has(name)) throw entry.wrong("name", "a name of its own", name);
    if (before.urls.has(url)) throw entry.wrong("address", "another package than the entries before", address);
    before.names.add(name);
    before.urls.add(url);
    const modalities = entry.texts("modalities", MODALITIES.length);
    const strange = modalities.find((each) => !MODALITIES.includes(each));
    if (strange !== undefined) throw entry.wrong("modalities", `of ${MODALITIES.join(", ")}`, strange);
    return {
      name,
      address,
      bytes: entry.count("size", 0, Number.MAX_SAFE_INTEGER, 0),
      memoryBytes: entry.count("memory", 0, Number.MAX_SAFE_INTEGER, 0),
      modalities,
    };
  });
}

function urlOf(entry: Fields, address: string, base: string): string {
  try {
    return packageUrl(address, base);
  } catch (error) {
    throw entry.wrong("address", `a package's address (${inWords(error).message})`, address);
  }
}

/** Models of a list that take less memory than so much, or less to download where none is said; the largest first. */
export function smallerModels({ models }: Offer, memoryBytes: number, bytes: number): OfferedModel[] {
  const isSmaller = (model: OfferedModel) =>
    model.memoryBytes ? model.memoryBytes < memoryBytes : model.bytes > 0 && model.bytes < bytes;
  return models.filter(isSmaller).sort((a, b) => b.memoryBytes - a.memoryBytes || b.bytes - a.bytes);
}

/** What a person chooses by: "2.61 GiB · 3.10 GiB of memory · text, image". */
export function modelLine({ bytes, memoryBytes, modalities }: OfferedModel): string {
  return [
    ...(bytes ? [formatBytes(bytes)] : []),
    ...(memoryBytes ? [`${formatBytes(memoryBytes)} of memory`] : []),
    ...(modalities.length ? [modalities.join(", ")] : []),
  ].join(" · ");
}
