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
    getFileHandle: async (name, { create = false } = {}) => {
      const file = path.join(at, name);
      if (!create && !fs.existsSync(file)) throw new DOMException(name, "NotFoundError");
      fs.closeSync(fs.openSync(file, "a"));
      const getFile = async () => new Blob([fs.readFileSync(file)]);
      return isSync ? { getFile, createSyncAccessHandle: async () => syncHandle(file) } : { getFile };
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

/** Beginnings of prompts that gemma4-web has written there: their names, and a way to damage the one that follows so many. */
export function chunkFiles(folder) {
  const at = path.join(folder, "gemma4-web-beginnings");
  const names = () => fs.readdirSync(at).sort();
  const damage = (depth) => {
    const facts = names().filter((name) => name.endsWith(".json"));
    const name = facts.find((each) => JSON.parse(fs.readFileSync(path.join(at, each))).depth === depth);
    const file = path.join(at, name.replace(/json$/, "data"));
    const bytes = fs.readFileSync(file);
    bytes[bytes.length >> 1] ^= 1;
    fs.writeFileSync(file, bytes);
  };
  return { names, damage };
}
