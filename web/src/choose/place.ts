// Where the table of per-layer embeddings of a package lies on this device, by what the browser and the package tell.
import { hexDigest, type Store } from "../kept";
import type { AdapterText } from "../selftest/known_answers";
import { counts } from "../stats";
import { KeptPace } from "./kept_pace";
import type { JudgedAdapter, TableChoice, TableOptions } from "./options";
import { folderOf, keptProvenance, type Fetch } from "./package_files";
import { readLibraries } from "./provenance";
import { isMobileAgent, pageMemory, placeOfTable, rowFilesProblem } from "./table_place";

/** What the choice asks of its surroundings; tests make it up. */
export interface PlaceSurroundings {
  readonly gpu: Pick<GPU, "requestAdapter"> | undefined;
  readonly store: Store | undefined;
  readonly storage: Partial<Pick<StorageManager, "getDirectory">> | undefined;
  readonly userAgent: string;
  readonly touches: number;
  /** Of the machine's memory, in bytes; 0: the browser does not tell. */
  readonly toldBytes: number;
  now(): number;
}

const GIB = 2 ** 30;

export function surroundings(): PlaceSurroundings {
  const navigator = globalThis.navigator as (Navigator & { deviceMemory?: number }) | undefined;
  return {
    gpu: navigator?.gpu,
    store: globalThis.caches,
    storage: navigator?.storage,
    userAgent: navigator?.userAgent ?? "",
    touches: navigator?.maxTouchPoints ?? 0,
    toldBytes: (navigator?.deviceMemory ?? 0) * GIB,
    now: () => Date.now(),
  };
}

/** The address that stands for a package, whichever of its revisions and versions it names. */
export function packageOf(url: string): string {
  let folder = new URL(url.endsWith("/") ? url : `${url}/`, globalThis.location?.href).href;
  for (let shorter = ""; shorter !== folder; ) {
    shorter = folder;
    folder = folder.replace(/\/resolve\/[^/]+\/$/, "/");
  }
  return folder;
}

/** The name of a package in storage. */
export const nameOf = (packageUrl: string): Promise<string> => hexDigest(packageOf(packageUrl));

/** The place of a package's pace on the device at hand. */
export async function keptPace(
  packageUrl: string,
  adapter: Pick<GPUAdapter, "info"> | null | undefined,
  { store, userAgent }: Pick<PlaceSurroundings, "store" | "userAgent">,
): Promise<KeptPace | undefined> {
  const { vendor = "", architecture = "", device = "", description = "" } = (adapter?.info ?? {}) as AdapterText;
  return KeptPace.open(packageOf(packageUrl), { vendor, architecture, device, description }, userAgent, store);
}

/** Chooses the place; throws where the package's needs cannot be read. */
export async function tablePlace(
  packageUrl: string,
  judged: JudgedAdapter | undefined,
  options: TableOptions,
  around: PlaceSurroundings = surroundings(),
): Promise<TableChoice> {
  const { neededBytes, savedBytes } = options.needs ?? (await needsOf(packageUrl, options, around));
  const adapter =
    judged ?? (await around.gpu?.requestAdapter({ powerPreference: "high-performance" }).catch(() => null));
  const isMobile = isMobileAgent(around.userAgent, around.touches);
  const limits = adapter?.limits as { maxBufferSize?: number } | undefined;
  const kept = await keptPace(packageUrl, adapter, around);
  const choice = placeOfTable({
    wanted: options.place,
    savedBytes,
    neededBytes,
    memory: pageMemory(options.memoryBytes ?? 0, around.toldBytes, limits?.maxBufferSize ?? 0, isMobile),
    isMobile,
    problem: await rowFilesProblem(around.storage),
    drafts: options.drafts ?? false,
    pace: await kept?.read(around.now()),
  });
  return { ...choice, savedBytes };
}

async function needsOf(
  packageUrl: string,
  { library = counts.library, fetch: get = (url) => fetch(url) }: { library?: string; fetch?: Fetch },
  { store }: PlaceSurroundings,
): Promise<{ neededBytes: number; savedBytes: number }> {
  const { text } = await keptProvenance(`${folderOf(packageUrl)}provenance.json`, get, store);
  const libraries = readLibraries(text);
  const { memory } = libraries.find(({ name }) => name === library) ?? libraries[0]!;
  const { weightsBytes, kvSlidingBytes, kvFullBytes, activationBytes, hostTableBytes } = memory!;
  return {
    neededBytes: weightsBytes + kvSlidingBytes + kvFullBytes + activationBytes,
    savedBytes: hostTableBytes,
  };
}
