// Whether a package's table of per-layer embeddings is to lie on the device, or on the host with the rows of each call's
// tokens brought to the device.
import type { TablePlace } from "./options";

/** A place, and why. */
export interface PlaceChoice {
  place: TablePlace;
  /** In a sentence, without its full stop. */
  why: string;
}

/** What a page may take of the device's memory, in bytes, and by what that is known. */
export interface PageMemory {
  bytes: number;
  why: string;
}

/** Times of one device with one package, in milliseconds. */
export interface Pace {
  /** Of a decode step that ran ahead. */
  stepMs: number;
  /** Of one that the client waited for: with its token's way to the host and back, and the client's own time. */
  aloneMs: number;
}

/** What the place is chosen by; plain data, so that tests can make it up. Sizes in bytes. */
export interface PlaceFacts {
  /** What a person or a caller wants; undefined: whatever is best. */
  wanted: TablePlace | undefined;
  /** What the device saves without the table; 0: there is none, or the library takes no rows from the host. */
  savedBytes: number;
  /** What the model takes of the device with the table. */
  neededBytes: number;
  /** undefined: nothing is known, or it is more than any model takes. */
  memory: PageMemory | undefined;
  isMobile: boolean;
  /** Why this browser cannot read rows from a file; undefined where it can. */
  problem: string | undefined;
  /** Whether tokens will be drafted: with a table on the host the rounds do not overlap. */
  drafts: boolean;
  /** undefined: nobody has measured it yet. */
  pace: Pace | undefined;
}

const MIB = 2 ** 20;
const GIB = 2 ** 30;
/** So little is not worth a file, unless nothing else makes a model fit. */
const LITTLE_BYTES = 64 * MIB;
/** Steps one at a time may take so many times as long as those that run ahead. */
const NEXT_TO_NOTHING = 1.05;
/** iOS ends a page at about one and a half gigabytes, its own memory included. */
const MOBILE_BYTES = 1.4 * GIB;
/** Of the machine's memory; no browser gets all of it. */
const SHARE = 0.75;
/** Browsers of before 2026 report at most this, of any machine that has as much or more. */
const LARGEST_TOLD_BYTES = 8 * GIB;
/** A device whose buffers are all smaller is a small one, or one with little memory of its own... */
const SMALL_BUFFER_BYTES = GIB;
/** ...and has about so much for a page. */
const SMALL_DEVICE_BYTES = 2 * GIB;

/**
 * What a page may take of a device's memory: the least that anything says, and what a person allows before all.
 *
 * `toldBytes`: of the machine, as the browser reports it; 0: it reports none. `largestBufferBytes`: the adapter's limit.
 */
export function pageMemory(
  allowedBytes: number,
  toldBytes: number,
  largestBufferBytes: number,
  isMobile: boolean,
): PageMemory | undefined {
  if (allowedBytes > 0) return { bytes: allowedBytes, why: `${size(allowedBytes)} are allowed` };
  const known: PageMemory[] = [];
  if (toldBytes > 0 && toldBytes < LARGEST_TOLD_BYTES)
    known.push({ bytes: SHARE * toldBytes, why: `the machine has about ${size(toldBytes)}` });
  if (isMobile) known.push({ bytes: MOBILE_BYTES, why: `a phone lets a page have about ${size(MOBILE_BYTES)}` });
  if (largestBufferBytes > 0 && largestBufferBytes < SMALL_BUFFER_BYTES)
    known.push({
      bytes: SMALL_DEVICE_BYTES,
      why: `a device whose buffers end at ${size(largestBufferBytes)} has about ${size(SMALL_DEVICE_BYTES)}`,
    });
  return known.sort((a, b) => a.bytes - b.bytes)[0];
}

/** The place: what is wanted where that can be; else the host where memory is short, or where nothing is lost. */
export function placeOfTable({
  wanted,
  savedBytes,
  neededBytes,
  memory,
  isMobile,
  problem,
  drafts,
  pace,
}: PlaceFacts): PlaceChoice {
  if (wanted === "device") return onDevice("it was asked for");
  if (!(savedBytes > 0)) return onDevice("the package has no such table, or its library takes no rows from the host");
  if (problem !== undefined) return onDevice(problem);
  if (wanted === "host") return onHost("it was asked for");
  if (memory && neededBytes > memory.bytes)
    return onHost(`with the table the model takes ${size(neededBytes)}, and ${memory.why}`);
  if (savedBytes < LITTLE_BYTES) return onDevice(`it takes ${size(savedBytes)} alone`);
  if (isMobile) return onHost("a phone ends pages that take much memory");
  if (drafts) return onDevice("there is room for it, and tokens are drafted ahead");
  if (!pace) return onDevice("there is room for it, and nobody has measured a step here yet");
  const times = `a step takes ${ms(pace.stepMs)} ahead of the client, and ${ms(pace.aloneMs)} one at a time`;
  if (pace.aloneMs <= NEXT_TO_NOTHING * pace.stepMs) return onHost(`${times}: next to nothing is lost`);
  return onDevice(`there is room for it, and ${times}`);
}

const onDevice = (why: string): PlaceChoice => ({ place: "device", why });
const onHost = (why: string): PlaceChoice => ({ place: "host", why });
const ms = (value: number): string => `${Number(value.toPrecision(3))} ms`;

function size(bytes: number): string {
  return bytes < GIB ? `${Number((bytes / MIB).toPrecision(3))} MiB` : `${Number((bytes / GIB).toPrecision(3))} GiB`;
}

/** Whether a browser's own description is one of a phone's or a tablet's; `touches`: an iPad reports that it is a Mac. */
export function isMobileAgent(agent: string, touches: number): boolean {
  return /Android|iPhone|iPad|iPod/.test(agent) || (/Macintosh/.test(agent) && touches > 1);
}

/** Why rows cannot be read from a file in a worker of this origin; undefined where they can. */
export async function rowFilesProblem(
  storage: Partial<Pick<StorageManager, "getDirectory">> | undefined,
): Promise<string | undefined> {
  if (!storage?.getDirectory) return "the browser has no file system of the origin's own";
  try {
    await storage.getDirectory();
    return undefined;
  } catch (error) {
    // In private windows, say.
    return `the browser refuses the file system of the origin's own: ${String((error as Error)?.message ?? error)}`;
  }
}
