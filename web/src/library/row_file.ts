// A file of the browser's that rows are read from at once: in the origin's private file system, held by this thread alone.
// One with a name outlives the thread. The next load writes into it what it does not hold yet, so that it is right
// whatever it was before: cut off, of another version of the package, or damaged.
import { alone } from "./thread_lock";

/** What the module uses of `FileSystemSyncAccessHandle`, which dedicated workers have. */
interface SyncHandle {
  read(bytes: Uint8Array, options: { at: number }): number;
  write(bytes: Uint8Array, options: { at: number }): number;
  truncate(bytes: number): void;
  getSize(): number;
  close(): void;
}

interface SyncFile {
  createSyncAccessHandle?(): Promise<SyncHandle>;
}

const FOLDER = "gemma4-web-rows";
/** Of a comparison with what the file holds. */
const PIECE_BYTES = 1 << 18;
/** A thread that has ended has its file for a moment longer. */
const RELEASE_MS = 100;
const RELEASE_TRIES = 5;
/** What browsers call a file that another thread has. */
const IN_USE = ["NoModificationAllowedError", "InvalidStateError"];
const isInUse = (error: unknown): boolean => IN_USE.includes((error as Error)?.name);

async function openFolder(create: boolean): Promise<FileSystemDirectoryHandle> {
  const storage = (navigator as { storage?: StorageManager }).storage;
  if (!storage?.getDirectory) throw new Error("the browser has no file system of the origin's own");
  return (await storage.getDirectory()).getDirectoryHandle(FOLDER, { create });
}

/** What earlier threads left, and what is kept of other packages; a file that is in use cannot be removed. */
async function removeOthers(folder: FileSystemDirectoryHandle, kept: readonly (string | undefined)[]): Promise<void> {
  const names: string[] = [];
  for await (const name of (folder as unknown as { keys(): AsyncIterable<string> }).keys()) names.push(name);
  for (const name of names) if (!kept.includes(name)) await folder.removeEntry(name).catch(() => undefined);
}

/** Removes the files of this origin but those of these names, and those that are in use. */
export async function removeRowFiles(kept: readonly string[]): Promise<void> {
  await alone(FOLDER, async () => {
    const folder = await openFolder(false).catch(() => undefined); // there never was one, or none can be
    if (folder) await removeOthers(folder, kept);
  });
}

export class RowFile {
  private isClosed = false;
  private scratch: Uint8Array<ArrayBuffer> | undefined;
  /** Of what was to be written, bytes that were there. */
  bytesKept = 0;

  private constructor(
    private readonly folder: FileSystemDirectoryHandle,
    private readonly name: string,
    private readonly handle: SyncHandle,
    private isKept: boolean,
    /** Bytes that it had when it was opened; beyond it holds nothing yet. */
    private readonly before: number,
  ) {}

  /**
   * One with room for `bytes`: that of a name, which is kept when it is closed, or a new one that goes; it is a new one,
   * too, where another model has that of the name. Throws where there is no room, or where files cannot be read at once.
   */
  static open(bytes: number, name?: string): Promise<RowFile> {
    return alone(FOLDER, async () => {
      const folder = await openFolder(true);
      await removeOthers(folder, [name]);
      if (name !== undefined) {
        const named = await RowFile.openNamed(folder, name, bytes);
        if (named) return named;
      }
      return RowFile.openOne(folder, crypto.randomUUID(), bytes, false);
    });
  }

  /** Undefined where it cannot be had, for example while another model has it. */
  private static async openNamed(
    folder: FileSystemDirectoryHandle,
    name: string,
    bytes: number,
  ): Promise<RowFile | undefined> {
    for (let attempt = 1; ; attempt++) {
      try {
        return await RowFile.openOne(folder, name, bytes, true);
      } catch (error) {
        if (!isInUse(error) || attempt === RELEASE_TRIES) return undefined;
        await new Promise((resolve) => setTimeout(resolve, RELEASE_MS));
      }
    }
  }

  private static async openOne(
    folder: FileSystemDirectoryHandle,
    name: string,
    bytes: number,
    isKept: boolean,
  ): Promise<RowFile> {
    const file = (await folder.getFileHandle(name, { create: true })) as unknown as SyncFile;
    try {
      if (!file.createSyncAccessHandle) throw new Error("files are read at once in a dedicated worker alone");
      const handle = await file.createSyncAccessHandle();
      try {
        const before = handle.getSize();
        handle.truncate(bytes);
        return new RowFile(folder, name, handle, isKept, Math.min(before, bytes));
      } catch (error) {
        handle.close();
        throw new Error(`the browser has no room for ${bytes} bytes: ${String(error)}`);
      }
    } catch (error) {
      // Not where it is in use: by now whoever has it may have let go of it.
      if (!isInUse(error)) await folder.removeEntry(name).catch(() => undefined);
      throw error;
    }
  }

  /** Throws where it is not written as a whole; a file that the disk did not take is not kept. */
  write(bytes: Uint8Array, at: number): void {
    try {
      this.writePieces(bytes, at);
    } catch (error) {
      this.isKept = false;
      throw error;
    }
  }

  private writePieces(bytes: Uint8Array, at: number): void {
    for (let done = 0; done < bytes.byteLength; done += PIECE_BYTES) {
      const piece = bytes.subarray(done, done + PIECE_BYTES);
      if (this.holds(piece, at + done)) {
        this.bytesKept += piece.byteLength;
        continue;
      }
      const written = this.handle.write(piece, { at: at + done });
      if (written !== piece.byteLength) throw new Error(`${done + written} of ${bytes.byteLength} bytes were written`);
    }
  }

  /** Whether the file had these bytes before: a disk reads faster than it writes, and does not wear out. */
  private holds(piece: Uint8Array, at: number): boolean {
    if (at + piece.byteLength > this.before) return false;
    this.scratch ??= new Uint8Array(PIECE_BYTES);
    const found = this.scratch.subarray(0, piece.byteLength);
    return this.handle.read(found, { at }) === piece.byteLength && areEqual(found, piece);
  }

  read(bytes: Uint8Array, at: number): void {
    const found = this.handle.read(bytes, { at });
    if (found !== bytes.byteLength) throw new Error(`expected ${bytes.byteLength} bytes of the table, found ${found}`);
  }

  close(): void {
    if (this.isClosed) return;
    this.isClosed = true;
    this.handle.close();
    if (!this.isKept) void this.folder.removeEntry(this.name).catch(() => undefined); // or whoever opens the next one
  }
}

function areEqual(a: Uint8Array, b: Uint8Array): boolean {
  const words = (a.byteOffset | b.byteOffset) % 4 === 0 ? a.byteLength >> 2 : 0;
  if (words > 0) {
    const [as, bs] = [a, b].map(({ buffer, byteOffset }) => new Uint32Array(buffer, byteOffset, words));
    for (let i = 0; i < words; i++) if (as![i] !== bs![i]) return false;
  }
  for (let i = 4 * words; i < a.byteLength; i++) if (a[i] !== b[i]) return false;
  return true;
}
