// Where beginnings of prompts are kept between visits: files in the origin's private file system, in the Cache API where a
// browser has none, or refuses it. Who removes some needs their names alone.
import { hexDigest } from "../kept";
import { alone } from "./thread_lock";

/** Named bytes that outlive the page. */
export interface Files {
  names(): Promise<string[]>;
  /** In pieces as the browser reads them; undefined: there is none of this name. */
  read(name: string): Promise<ReadableStream<Uint8Array> | undefined>;
  /** All of a file; rejects where there is no room, and leaves what it may have written. */
  write(name: string, pieces: AsyncIterable<Uint8Array<ArrayBuffer>>): Promise<void>;
  remove(name: string): Promise<void>;
}

/** When each chunk was used last, in a file of its own. */
export const USED = "used";

const FOLDER = "gemma4-web-beginnings";
// The Cache API takes addresses only. This host cannot exist (RFC 2606), and nothing asks for it.
const ADDRESS = "https://beginnings.invalid/";
/** Of a digest, in names: enough to tell packages and owners apart. */
const SHORT = 16;

/**
 * Where an application's files are, by its name: an origin may have several, which know nothing of each other's chats, and
 * each has its own budget. Those without a name are one.
 */
export async function placeOf(application?: string): Promise<string> {
  return application === undefined ? FOLDER : `${FOLDER}-${await short(application)}`;
}

/** The files of a place; undefined where the browser keeps none, or has no such place and none is to be made. */
export async function openFiles(place: string, make = true): Promise<Files | undefined> {
  try {
    const storage = (navigator as { storage?: StorageManager }).storage;
    const root = await storage?.getDirectory?.();
    if (root) return new FolderFiles(await root.getDirectoryHandle(place, { create: make }));
  } catch {
    // In private windows, say.
  }
  try {
    if (!make && !(await caches.has(place))) return undefined;
    return new CachedFiles(await caches.open(place));
  } catch {
    return undefined;
  }
}

interface SyncHandle {
  write(bytes: Uint8Array, options: { at: number }): number;
  truncate(bytes: number): void;
  close(): void;
}

/** Of a dedicated worker; elsewhere a file is written through a stream. */
interface SyncFile {
  createSyncAccessHandle?(): Promise<SyncHandle>;
}

class FolderFiles implements Files {
  constructor(private readonly folder: FileSystemDirectoryHandle) {}

  async names(): Promise<string[]> {
    const names: string[] = [];
    for await (const name of (this.folder as unknown as { keys(): AsyncIterable<string> }).keys()) names.push(name);
    return names;
  }

  async read(name: string): Promise<ReadableStream<Uint8Array> | undefined> {
    const handle = await this.folder.getFileHandle(name).catch(() => undefined);
    return (await handle?.getFile())?.stream();
  }

  async write(name: string, pieces: AsyncIterable<Uint8Array<ArrayBuffer>>): Promise<void> {
    const file = await this.folder.getFileHandle(name, { create: true });
    const { createSyncAccessHandle: open } = file as SyncFile;
    if (!open) {
      const stream = await file.createWritable();
      for await (const piece of pieces) await stream.write(piece);
      return stream.close();
    }
    const handle = await open.call(file);
    try {
      handle.truncate(0);
      let at = 0;
      for await (const piece of pieces) {
        const written = handle.write(piece, { at });
        if (written !== piece.byteLength) throw new DOMException("the disk is full", "QuotaExceededError");
        at += written;
      }
    } finally {
      handle.close();
    }
  }

  async remove(name: string): Promise<void> {
    await this.folder.removeEntry(name).catch(() => undefined); // it is gone, or in use
  }
}

class CachedFiles implements Files {
  constructor(private readonly cache: Cache) {}

  async names(): Promise<string[]> {
    return (await this.cache.keys()).map(({ url }) => url.slice(ADDRESS.length));
  }

  async read(name: string): Promise<ReadableStream<Uint8Array> | undefined> {
    return (await this.cache.match(ADDRESS + name))?.body ?? undefined;
  }

  async write(name: string, pieces: AsyncIterable<Uint8Array<ArrayBuffer>>): Promise<void> {
    const source = pieces[Symbol.asyncIterator]();
    const body = new ReadableStream<Uint8Array<ArrayBuffer>>({
      async pull(controller) {
        const { done, value } = await source.next();
        if (done) controller.close();
        else controller.enqueue(value);
      },
    });
    await this.cache.put(ADDRESS + name, new Response(body));
  }

  async remove(name: string): Promise<void> {
    await this.cache.delete(ADDRESS + name);
  }
}

// --- Names ---

/** A chunk of a package: what its files' names begin with. */
export const baseOf = (package_: string, key: string): string => `${package_}-${key}`;
/** Keys, values and logits; what they are; a mark of somebody who has used them. */
export const DATA = ".data";
export const FACTS = ".json";
export const ownerMark = async (owner: string): Promise<string> => `.of-${await short(owner)}`;

/** A name for a package, or for an owner. */
export async function short(text: string): Promise<string> {
  return (await hexDigest(text)).slice(0, SHORT);
}

/** Names by the chunk that they belong to. */
export function byBase(names: readonly string[]): Map<string, string[]> {
  const found = new Map<string, string[]>();
  for (const name of names) {
    const base = name.split(".", 1)[0]!;
    found.set(base, [...(found.get(base) ?? []), name]);
  }
  return found;
}

/** Removes a chunk: first what says that it is one. */
export async function removeChunk(files: Files, names: readonly string[]): Promise<void> {
  for (const name of [...names].sort((a, b) => Number(b.endsWith(FACTS)) - Number(a.endsWith(FACTS))))
    await files.remove(name);
}

/** What is to be removed; all of the application where no owners or packages are given. */
export interface Forgotten {
  /** As `lastingBeginnings` was told; others' are not touched. */
  readonly application?: string;
  /** What these alone have used. */
  readonly owners?: readonly string[];
  /** What is of none of these packages, by `short`, and of none of these owners. */
  readonly butPackages?: readonly string[];
  readonly butOwners?: readonly string[];
}

/** Removes chunks from the browser's storage, in any thread of the origin. */
export async function removeBeginnings({ application, owners, butPackages, butOwners }: Forgotten): Promise<void> {
  const place = await placeOf(application);
  const leaving = owners && new Set(await Promise.all(owners.map(ownerMark)));
  const staying = butOwners && new Set(await Promise.all(butOwners.map(ownerMark)));
  const isAll = !leaving && !staying && !butPackages;
  await alone(place, async () => {
    const files = await openFiles(place, false);
    if (!files) return;
    for (const [base, names] of byBase(await files.names())) {
      if (base === USED && !isAll) continue;
      const isOther = butPackages && !butPackages.includes(base.slice(0, SHORT));
      const marks = names.filter((name) => name.startsWith(`${base}.of-`));
      const gone = marks.filter((name) => {
        const mark = name.slice(base.length);
        return leaving?.has(mark) || (staying && !staying.has(mark));
      });
      const isNobodys = gone.length === marks.length && (gone.length > 0 || staying !== undefined);
      if (isAll || isOther || isNobodys) await removeChunk(files, names);
      else for (const name of gone) await files.remove(name);
    }
  });
}
