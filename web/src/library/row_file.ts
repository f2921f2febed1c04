// A file of the browser's that rows are read from at once: in the origin's private file system, held by this thread alone.

/** What the module uses of `FileSystemSyncAccessHandle`, which dedicated workers have. */
interface SyncHandle {
  read(bytes: Uint8Array, options: { at: number }): number;
  write(bytes: Uint8Array, options: { at: number }): number;
  truncate(bytes: number): void;
  close(): void;
}

interface SyncFile {
  createSyncAccessHandle?(): Promise<SyncHandle>;
}

const FOLDER = "gemma4-web-rows";

/** Runs `action` while no other thread of the origin makes or removes such files. */
async function alone<T>(action: () => Promise<T>): Promise<T> {
  const locks = (navigator as { locks?: LockManager }).locks;
  return locks ? locks.request(FOLDER, action) : action();
}

async function openFolder(): Promise<FileSystemDirectoryHandle> {
  const storage = (navigator as { storage?: StorageManager }).storage;
  if (!storage?.getDirectory) throw new Error("the browser has no file system of the origin's own");
  return (await storage.getDirectory()).getDirectoryHandle(FOLDER, { create: true });
}

/** What threads that are gone left behind; a file that is in use cannot be removed. */
async function removeOthers(folder: FileSystemDirectoryHandle): Promise<void> {
  const names: string[] = [];
  for await (const name of (folder as unknown as { keys(): AsyncIterable<string> }).keys()) names.push(name);
  for (const name of names) await folder.removeEntry(name).catch(() => undefined);
}

export class RowFile {
  private isClosed = false;

  private constructor(
    private readonly folder: FileSystemDirectoryHandle,
    private readonly name: string,
    private readonly handle: SyncHandle,
  ) {}

  /** A new one with room for `bytes`; throws where there is none, or where files cannot be read at once. */
  static open(bytes: number): Promise<RowFile> {
    return alone(async () => {
      const folder = await openFolder();
      await removeOthers(folder);
      const name = crypto.randomUUID();
      const file = (await folder.getFileHandle(name, { create: true })) as unknown as SyncFile;
      try {
        if (!file.createSyncAccessHandle) throw new Error("files are read at once in a dedicated worker alone");
        const handle = await file.createSyncAccessHandle();
        try {
          handle.truncate(bytes);
        } catch (error) {
          handle.close();
          throw new Error(`the browser has no room for ${bytes} bytes: ${String(error)}`);
        }
        return new RowFile(folder, name, handle);
      } catch (error) {
        await folder.removeEntry(name).catch(() => undefined);
        throw error;
      }
    });
  }

  /** Throws where it is not written as a whole. */
  write(bytes: Uint8Array, at: number): void {
    const written = this.handle.write(bytes, { at });
    if (written !== bytes.byteLength) throw new Error(`${written} of ${bytes.byteLength} bytes were written`);
  }

  read(bytes: Uint8Array, at: number): void {
    const found = this.handle.read(bytes, { at });
    if (found !== bytes.byteLength) throw new Error(`expected ${bytes.byteLength} bytes of the table, found ${found}`);
  }

  close(): void {
    if (this.isClosed) return;
    this.isClosed = true;
    this.handle.close();
    void this.folder.removeEntry(this.name).catch(() => undefined); // or whoever opens the next one
  }
}
