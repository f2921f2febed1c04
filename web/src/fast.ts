// Makes Gemma 4 packages of gemma4-compile fast in the unmodified WebLLM client. Import it before the client:
//
//   import "gemma4-web/fast";
//   import { CreateMLCEngine } from "@mlc-ai/web-llm";
//
// The client issues some 270 launches for a token, and each costs it a bind group, a pass, a uniform buffer and a way
// through WebAssembly. This module is between the client, the library and the device: it keeps bind groups,
// records a decode step once, runs several steps ahead with the numbers that the client is going to draw, and hands
// the client what it asks for. What it does not know it leaves alone.
import { type DriverExports, readInterface } from "./library/abi";
import { type Choice, type ChooseOptions, chooseLibrary as choose, type JudgedAdapter } from "./choose";
import { forgetChoices } from "./choose/kept_choice";
import type { TableChoice, TableOptions } from "./choose/options";
import { folderOf, keptProvenance } from "./choose/package_files";
import { keptPace, nameOf, packageOf, surroundings, tablePlace } from "./choose/place";
import { MEASURED_DEVICE } from "./choose/measured_device";
import { KeptChunks } from "./driver/kept_chunks";
import { StepDriver } from "./driver/step_driver";
import { StoredChunks } from "./driver/stored_chunks";
import { Device, type Owner } from "./gpu/device";
import { Drafter } from "./speculative/drafter_state";
import { tryDrafter } from "./speculative/drafter";
import type { DrafterOptions } from "./speculative/drafter_options";
import { HostRows } from "./library/host_rows";
import { Library, type LibraryHost } from "./library/library";
import { RowFile } from "./library/row_file";
import { readPieces } from "./library/table_index";
import { withClock } from "./gpu/pass_clock";
import { profileReply } from "./profile/profile";
import type { Profile } from "./profile/times";
import { DeviceTest } from "./selftest/device_test";
import { because, counts, pace, type Stats } from "./stats";
import { withSubgroupMatrices } from "./gpu/subgroup_matrices";
import { withSubgroupSize } from "./gpu/subgroup_size";

export type { Choice, ChooseOptions, JudgedAdapter, Measured, TableChoice, TableOptions, TablePlace } from "./choose";
export type { DrafterOptions } from "./speculative/drafter_options";
export type { KernelTime, Profile, StepProfile } from "./profile/times";
export type { Stats } from "./stats";

type Instantiate = (source: BufferSource | WebAssembly.Module, imports?: WebAssembly.Imports) => Promise<unknown>;
type SafeCall = (self: number, args: number, count: number, result: number) => number;

/** The library whose callback runs now. */
let active: Library | undefined;
const libraries = new Set<WeakRef<Library>>();
const devices = new Set<WeakRef<Device>>();

function enter(library: Library | undefined): Library | undefined {
  const before = active;
  active = library;
  return before;
}

const owner: Owner = {
  // A device belongs to the library whose callback makes its first buffer.
  claims(device) {
    if (!active || (active.device && active.device !== device)) return false;
    active.device = device;
    if (active.kept) device.keepsWrites = true; // the ids of prompts
    return true;
  },
  isCalling: () => active !== undefined,
  catcherOf(bytes) {
    return active && rowsOf(active)?.catcherOf(active, bytes);
  },
};

/** Tables of per-layer embeddings that are not on a device, or will not be. */
const rowSources = new Set<HostRows>();

/** Those of a load that did not come. */
function endUnused(): void {
  for (const rows of rowSources) if (!rows.isUsed) rows.end();
}

function rowsOf(library: Library): HostRows | undefined {
  for (const rows of rowSources) if (rows.isFor(library)) return rows;
  return undefined;
}

const host: LibraryHost = {
  enter,
  driverOf: (conversation, onEnd) => StepDriver.create(conversation, onEnd),
  rowsOf,
  gateOf: (metadata, device) => DeviceTest.of(metadata, device, () => forgetChoices()),
};

const liveLibraries = (): Library[] => [...libraries].flatMap((reference) => reference.deref() ?? []);

function remember<T extends object>(set: Set<WeakRef<T>>, item: T): void {
  for (const reference of set) if (!reference.deref()) set.delete(reference);
  set.add(new WeakRef(item));
}

/** The device's clock, and with subgroups their size, where a kernel may choose it, and their matrices. */
function withFeatures(
  adapter: GPUAdapter,
  descriptor: GPUDeviceDescriptor | undefined,
): GPUDeviceDescriptor | undefined {
  const asked = descriptor?.requiredFeatures as Iterable<GPUFeatureName> | undefined;
  if (!counts.enabled || !asked) return descriptor;
  const sized = withSubgroupSize(asked, adapter.features);
  return {
    ...descriptor,
    requiredFeatures: withClock(withSubgroupMatrices(sized, adapter.features), adapter.features),
  };
}

function watchDevices(gpu: GPU): void {
  const requestAdapter = gpu.requestAdapter.bind(gpu);
  gpu.requestAdapter = async (options) => {
    const adapter = await requestAdapter(options);
    if (!adapter || !counts.enabled) return adapter;
    const requestDevice = adapter.requestDevice.bind(adapter);
    adapter.requestDevice = async (descriptor) => {
      if (descriptor?.label === MEASURED_DEVICE) return requestDevice(descriptor);
      const device = await requestDevice(withFeatures(adapter, descriptor));
      if (!counts.enabled) return device;
      const watched = new Device(device, adapter.info, owner);
      remember(devices, watched);
      await watched.waits.find(); // while nobody uses it
      return device;
    };
    return adapter;
  };
}

function openLibrary(exports: WebAssembly.Exports): Library | undefined {
  const found = readInterface(exports);
  if (typeof found === "string") {
    because(found);
    return undefined;
  }
  const library = new Library(exports as unknown as DriverExports, found, host);
  if (beginningsBytes > 0) library.kept = new KeptChunks(library, beginningsBytes);
  remember(libraries, library);
  counts.libraries += 1;
  counts.stepMs = counts.aloneMs = 0; // those before were another model's
  return library;
}

function watchLibraries(): void {
  const instantiate = WebAssembly.instantiate.bind(WebAssembly) as unknown as Instantiate;
  const watched: Instantiate = async (source, imports) => {
    const safeCall = imports?.["env"]?.["TVMFFIWasmSafeCall"] as SafeCall | undefined;
    if (!counts.enabled || typeof safeCall !== "function") return instantiate(source, imports);
    const deleted = imports!["env"]!["TVMFFIWasmFunctionDeleter"] as ((self: number) => void) | undefined;
    let library: Library | undefined;
    const env = {
      ...imports!["env"],
      TVMFFIWasmSafeCall: (self: number, args: number, count: number, result: number) =>
        library ? library.calledBack(safeCall, self, args, count, result) : safeCall(self, args, count, result),
      TVMFFIWasmFunctionDeleter: (self: number) => {
        library?.callbackGone(self);
        deleted?.(self);
      },
    };
    const made = await instantiate(source, { ...imports, env });
    const isInstance = made instanceof WebAssembly.Instance;
    const { exports } = isInstance ? made : (made as WebAssembly.WebAssemblyInstantiatedSource).instance;
    const call = exports["TVMFFIFunctionCall"] as DriverExports["TVMFFIFunctionCall"];
    let isRead = false; // the library can be asked when the client has initialised it
    const driven = {
      ...exports,
      TVMFFIFunctionCall: (handle: number, args: number, count: number, result: number) => {
        if (!isRead) {
          isRead = true;
          library = openLibrary(exports);
        }
        return library ? library.call(handle, args, count, result) : call(handle, args, count, result);
      },
    };
    const instance = Object.create(WebAssembly.Instance.prototype, {
      exports: { value: driven, enumerable: true },
    }) as WebAssembly.Instance;
    return isInstance ? instance : { module: (made as WebAssembly.WebAssemblyInstantiatedSource).module, instance };
  };
  WebAssembly.instantiate = watched as unknown as typeof WebAssembly.instantiate;
}

/** Bytes of a device for beginnings of prompts. */
let beginningsBytes = 0;

/**
 * Keeps beginnings of prompts on the devices of models that are loaded from now on, in at most so many bytes each: a prompt
 * that begins with whole chunks of an earlier one gets their keys and values by a copy. 0: none.
 */
export function keepBeginnings(bytes: number): void {
  if (!(Number.isSafeInteger(bytes) && bytes >= 0))
    throw new RangeError(`keepBeginnings: expected bytes from 0 on, found ${bytes}`);
  beginningsBytes = bytes;
}

/** What is kept of prompts beyond the page's end. */
export interface LastingBeginnings {
  /**
   * Brings back to the device what there is room for; what is damaged is removed. Rejects where there is no storage any more.
   * `onBytes` hears how much is back, what was used last coming first: replies may begin before all is.
   */
  restore(onBytes?: (bytes: number) => void): Promise<void>;
  /** A reply to this owner begins: a conversation, say. */
  begin(owner: string): void;
  /** Writes what its prompts have used since; returns, once, why nothing is written any more. */
  save(owner: string): Promise<string | undefined>;
  /** Nothing more of these owners is written, or of anybody. `forgetBeginnings` of gemma4-web/choose removes what is there. */
  forget(owners?: readonly string[]): void;
}

export interface LastingOptions {
  /**
   * Whose they are, where an origin has several applications: each keeps, bounds and forgets its own. Those that name none are
   * one.
   */
  readonly application?: string;
  /** Changes with the package's files, its library and the length of the context; by default by `provenance.json`. */
  readonly version?: string;
  /** Of the browser's storage; by default what `keepBeginnings` was given. */
  readonly mostBytes?: number;
  /** How `provenance.json` comes. */
  readonly fetch?: (url: string) => Promise<Response>;
}

/**
 * Beginnings of prompts in the browser's storage, for the model that was loaded last, of the package at `packageUrl`; undefined
 * where none are kept, or the browser stores nothing.
 */
export async function lastingBeginnings(
  packageUrl: string,
  { application, version, mostBytes = beginningsBytes, fetch: get = (url) => fetch(url) }: LastingOptions = {},
): Promise<LastingBeginnings | undefined> {
  const library = liveLibraries()
    .reverse()
    .find(({ kept, isDriven }) => kept && isDriven);
  if (!(library?.kept instanceof KeptChunks)) return undefined;
  const { store, userAgent } = surroundings();
  const { vendor, architecture, device, description } = library.device!.adapter;
  const files = version ?? (await keptProvenance(`${folderOf(packageUrl)}provenance.json`, get, store)).text;
  const identity = [files, counts.library, vendor, architecture, device, description, userAgent];
  return StoredChunks.open(library.kept, packageOf(packageUrl), identity, mostBytes, application);
}

/** What the module has done so far, for all engines of this thread. */
export function stats(): Stats {
  return { ...counts, reasons: [...counts.reasons] };
}

/**
 * The model library of the package at `packageUrl` for this device, to spread into a model record; `stats()` has it,
 * too. `adapter`: the one to judge, which is not used up.
 */
export async function chooseLibrary(
  packageUrl: string,
  adapter?: JudgedAdapter,
  options: ChooseOptions = {},
): Promise<Choice> {
  return choose(packageUrl, adapter, { fast: counts.enabled, ...options });
}

/** Tells `stats()` of this thread which library another thread has chosen for it, and why. */
export function noteChoice({ name, why }: Pick<Choice, "name" | "why">): void {
  counts.library = name;
  counts.libraryReason = why;
}

/**
 * Loads the drafter of the package at `modelUrl`, whose library the client has loaded before: several tokens a step
 * from then on, where that pays. False, with the reason in `stats().reasons`, where it cannot be.
 */
export async function useDrafter(modelUrl: string, options: DrafterOptions = {}): Promise<boolean> {
  return tryDrafter(liveLibraries().reverse(), modelUrl, options);
}

const SWITCHED_OFF = "the module is switched off, or there is no WebGPU in this thread";

export interface RowOptions {
  /** false: the file goes with the model; by default it is kept for the next load of the package. */
  readonly keep?: boolean;
  /** By default by `fetch`, and without a network from the browser's cache storage. */
  readonly fetch?: (url: string) => Promise<Response>;
}

/**
 * The table of per-layer embeddings of the package at `packageUrl` stays off the device when the client loads it next,
 * in this thread: a dedicated worker. Call it right before the load. False, with the reason in `stats().reasons`, where
 * that cannot be; the table is loaded onto the device then.
 */
export async function useRowsFromHost(packageUrl: string, options: RowOptions = {}): Promise<boolean> {
  return (await openRows(packageUrl, options)) === undefined;
}

/** Why it cannot be; undefined where it is done. */
async function openRows(packageUrl: string, { keep = true, fetch: get }: RowOptions): Promise<string | undefined> {
  try {
    if (!counts.enabled) throw new Error(SWITCHED_OFF);
    const pieces = await readPieces(packageUrl, get);
    const bytes = pieces.reduce((sum, { nbytes }) => sum + nbytes, 0);
    const file = await RowFile.open(bytes, keep ? await nameOf(packageUrl) : undefined);
    endUnused();
    rowSources.add(new HostRows(pieces, file, (rows) => rowSources.delete(rows)));
    return undefined;
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    because(`per-layer embeddings stay on the device: ${reason}`);
    return reason;
  }
}

/**
 * Chooses where the table of per-layer embeddings of the package at `packageUrl` lies, and does what `useRowsFromHost` does
 * where that is the host: in the thread of the client, right before the load. `stats().tableReason` has why.
 */
export async function placeTable(packageUrl: string, options: TableOptions = {}): Promise<TableChoice> {
  keepPaceOf(packageUrl);
  const found = await chosenPlace(packageUrl, options);
  const problem = found.place === "host" ? await openRows(folderOf(packageUrl), options) : undefined;
  const choice = problem === undefined ? found : { ...found, place: "device" as const, why: problem };
  counts.tableReason = choice.why;
  return choice;
}

async function chosenPlace(packageUrl: string, options: TableOptions): Promise<TableChoice> {
  try {
    if (!counts.enabled) throw new Error(SWITCHED_OFF);
    return await tablePlace(packageUrl, undefined, options);
  } catch (error) {
    return { place: "device", why: String((error as Error)?.message ?? error), savedBytes: 0 };
  }
}

/** The time of a step is kept for the package, which is loaded next, as long as it is the only one of the thread. */
function keepPaceOf(packageUrl: string): void {
  const before = new WeakSet(liveLibraries());
  pace.heard = () => {
    const { stepMs, aloneMs } = counts;
    const [library, other] = liveLibraries();
    if (other || !library?.device || before.has(library)) return;
    void keptPace(packageUrl, { info: library.device.adapter }, surroundings()).then((kept) =>
      kept?.write({ stepMs, aloneMs }, Date.now()),
    );
  };
}

/**
 * Where the time of a prompt and of a token goes, by kernel, on the device of the model whose client `reply` lets answer a
 * question, three times: in a conversation of its own, with eight tokens or more, while no other reply is written. What
 * was said before is not in the client's state any more afterwards: it reads it again.
 */
export async function profile(reply: () => Promise<unknown>): Promise<Profile> {
  return profileReply(liveLibraries(), reply);
}

/** Ends the module's part for good: models that are loaded, and those that follow, are driven by the client alone. */
export function disable(): void {
  if (!counts.enabled) return;
  counts.enabled = false;
  because("disable() was called");
  endUnused();
  for (const reference of libraries) {
    const library = reference.deref();
    if (!library) continue;
    library.makePlain();
    Drafter.of(library).release();
  }
  for (const device of devices) device.deref()?.makePlain();
}

if (typeof navigator !== "undefined" && navigator.gpu) {
  watchDevices(navigator.gpu);
  watchLibraries();
} else {
  counts.enabled = false;
  because("there is no WebGPU in this thread");
}
