// `models.json` beside the page: the packages that whoever put the page there offers. A page without one has the field for
// an address alone.
import { fetchChecked, readSmall, Refused, Unreachable } from "../download/fetch";
import { packageUrl } from "./address";
import { Fields } from "./json_fields";
import { formatBytes } from "./units";
import { UserError } from "./user_error";

export const MODELS = "models.json";
const MOST_BYTES = 2 ** 18;
const MOST_MODELS = 64;
const LONGEST_NAME = 80;
const LONGEST_ADDRESS = 500;
const MODALITIES = ["text", "image", "audio"];

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
  try {
    const url = new URL(MODELS, base).href;
    const response = await fetchChecked(url);
    // Hosts of pages with one address answer for any file with the page itself.
    if (response.headers.get("content-type")?.includes("html")) return { models: [] };
    return { models: readModels(Fields.parse(await readSmall(response, url, MOST_BYTES, tooLong), MODELS), base) };
  } catch (error) {
    if (error instanceof Refused || error instanceof Unreachable) return { models: [] };
    if (error instanceof UserError) return { models: [], fault: error };
    throw error;
  }
}

/** The models of a list; a UserError names a field that is wrong. */
export function readModels(list: Fields, base: string): OfferedModel[] {
  return list.objects("models", MOST_MODELS).map((entry) => {
    const name = entry.text("name", "", LONGEST_NAME);
    const address = entry.text("address", "", LONGEST_ADDRESS);
    if (!name.trim()) throw entry.wrong("name", "a name", entry.raw("name"));
    if (!address.trim()) throw entry.wrong("address", "a package's address", entry.raw("address"));
    packageUrl(address, base); // which says what is wrong with it
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

/** What a person chooses by: "2.61 GiB · 3.10 GiB of memory · text, image". */
export function modelLine({ bytes, memoryBytes, modalities }: OfferedModel): string {
  return [
    ...(bytes ? [formatBytes(bytes)] : []),
    ...(memoryBytes ? [`${formatBytes(memoryBytes)} of memory`] : []),
    ...(modalities.length ? [modalities.join(", ")] : []),
  ].join(" · ");
}
