// The origin's private file system of a dedicated worker, in a folder.
import fs from "node:fs";
import path from "node:path";

/**
 * `room`: bytes that a file may have, and `writable` those that are written before the disk is full; without `isSync`
 * files cannot be read at once, as in a page.
 */
export function fakeFiles(folder, { room = Infinity, writable = Infinity, isSync = true } = {}) {
  const held = new Set();
  const noRoom = () => new DOMException("no room", "QuotaExceededError");
  let left = writable;
  const syncHandle = (file) => {
    if (held.has(file)) throw new DOMException("in use", "NoModificationAllowedError");
    const descriptor = fs.openSync(file, "r+");
    held.add(file);
    return {
      read: (bytes, { at }) => fs.readSync(descriptor, bytes, 0, bytes.byteLength, at),
      write: (bytes, { at }) => {
        left -= bytes.byteLength;
        if (left < 0) throw noRoom();
        return fs.writeSync(descriptor, bytes, 0, bytes.byteLength, at);
      },
      truncate: (bytes) => {
        if (bytes > room) throw noRoom();
        fs.ftruncateSync(descriptor, bytes);
      },
      getSize: () => fs.fstatSync(descriptor).size,
      close: () => {
        fs.closeSync(descriptor);
        held.delete(file);
      },
    };
  };
  const directory = (at) => ({
    getDirectoryHandle: async (name) => {
      fs.mkdirSync(path.join(at, name), { recursive: true });
      return directory(path.join(at, name));
    },
    getFileHandle: async (name) => {
      const file = path.join(at, name);
      fs.closeSync(fs.openSync(file, "a"));
      return isSync ? { createSyncAccessHandle: async () => syncHandle(file) } : {};
    },
    removeEntry: async (name) => {
      if (held.has(path.join(at, name))) throw new DOMException("in use", "NoModificationAllowedError");
      fs.rmSync(path.join(at, name));
    },
    async *keys() {
      yield* fs.readdirSync(at);
    },
  });
  navigator.storage = { getDirectory: async () => directory(folder) };
}
