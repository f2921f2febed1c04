import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { RowFile, removeRowFiles } from "../../src/library/row_file";
import { readPieces } from "../../src/library/table_index";

/** A file system whose files are names; those that are open cannot be removed. */
function stubFiles({ room = 100, isSync = true } = {}) {
  const files = new Map<string, Uint8Array>();
  const writes: [at: number, bytes: number][] = [];
  const open = new Set<string>();
  const handleOf = (name: string) => {
    if (open.has(name)) throw new DOMException("in use", "NoModificationAllowedError");
    open.add(name);
    return {
      getSize: () => files.get(name)!.byteLength,
      truncate: (bytes: number) => {
        if (bytes > room) throw new DOMException("full", "QuotaExceededError");
        const before = files.get(name)!.subarray(0, bytes);
        files.set(name, new Uint8Array(bytes));
        files.get(name)!.set(before);
      },
      write: (bytes: Uint8Array, { at }: { at: number }) => {
        writes.push([at, bytes.byteLength]);
        const fits = bytes.subarray(0, Math.max(0, files.get(name)!.byteLength - at));
        files.get(name)!.set(fits, at);
        return fits.byteLength;
      },
      read: (bytes: Uint8Array, { at }: { at: number }) => {
        const found = files.get(name)!.subarray(at, at + bytes.byteLength);
        bytes.set(found);
        return found.byteLength;
      },
      close: () => open.delete(name),
    };
  };
  const folder = {
    getFileHandle: async (name: string) => {
      if (!files.has(name)) files.set(name, new Uint8Array());
      return isSync ? { createSyncAccessHandle: async () => handleOf(name) } : {};
    },
    removeEntry: async (name: string) => {
      if (open.has(name)) throw new DOMException("in use", "NoModificationAllowedError");
      files.delete(name);
    },
    async *keys() {
      yield* [...files.keys()];
    },
  };
  vi.stubGlobal("navigator", {
    storage: { getDirectory: async () => ({ getDirectoryHandle: async () => folder }) },
  });
  return Object.assign(files, { writes });
}

afterEach(() => {
  vi.unstubAllGlobals();
});

describe("RowFile", () => {
  it("keeps bytes, and goes when it is closed", async () => {
    const files = stubFiles();
    const file = await RowFile.open(10);
    file.write(Uint8Array.of(1, 2, 3), 4);
    const found = new Uint8Array(2);
    file.read(found, 5);
    expect([...found]).toEqual([2, 3]);
    expect(() => file.read(new Uint8Array(4), 8)).toThrow("expected 4 bytes");
    expect(() => file.write(new Uint8Array(4), 8)).toThrow("2 of 4 bytes");
    file.close();
    file.close();
    await Promise.resolve();
    expect(files.size).toBe(0);
  });

  it("removes what threads of before left, but no file that is in use", async () => {
    const files = stubFiles();
    const first = await RowFile.open(1);
    files.set("left behind", new Uint8Array(3));
    await RowFile.open(2);
    expect(Array.from(files.values(), ({ byteLength }) => byteLength)).toEqual([1, 2]);
    first.close();
  });

  it.each([
    [{ room: 5 }, "no room for 6 bytes"],
    [{ isSync: false }, "dedicated worker"],
  ])("says why there can be none, and leaves nothing: %j", async (limits, reason) => {
    const files = stubFiles(limits);
    await expect(RowFile.open(6)).rejects.toThrow(reason);
    expect(files.size).toBe(0);
  });

  it("says so where the browser has no such files", async () => {
    vi.stubGlobal("navigator", {});
    await expect(RowFile.open(6)).rejects.toThrow("no file system");
  });
});

describe("a RowFile with a name", () => {
  const PIECE = 1 << 18;
  const LARGE = 2 * PIECE + 5;
  const table = Uint8Array.from({ length: LARGE }, (_, i) => i % 251);

  const areSame = (a: Uint8Array, b: Uint8Array) => a.length === b.length && a.every((byte, i) => byte === b[i]);
  const joined = (a: Uint8Array, b: Uint8Array) => {
    const all = new Uint8Array(a.length + b.length);
    all.set(a);
    all.set(b, a.length);
    return all;
  };

  /** A load of the table as the client's, into the file of a name; bytes that were there. */
  async function load(content = table, name = "a") {
    const file = await RowFile.open(content.byteLength, name);
    file.write(content.subarray(0, PIECE + 3), 0);
    file.write(content.subarray(PIECE + 3), PIECE + 3);
    const found = new Uint8Array(content.byteLength);
    file.read(found, 0);
    expect(areSame(found, content)).toBe(true);
    file.close();
    return file.bytesKept;
  }

  it("is kept, and written once", async () => {
    const files = stubFiles({ room: LARGE });
    expect(await load()).toBe(0);
    expect([...files.keys()]).toEqual(["a"]);
    files.writes.length = 0;
    expect(await load()).toBe(LARGE);
    expect(files.writes).toEqual([]);
  });

  it.each<[string, (before: Uint8Array<ArrayBuffer>) => Uint8Array]>([
    ["was cut off", (before) => before.subarray(0, PIECE + 1)],
    ["is empty", () => new Uint8Array()],
    ["is longer", (before) => joined(before.subarray(0, 1000), new Uint8Array(LARGE))],
    ["is another table", (before) => before.map((byte) => byte ^ 1)],
    ["has one other byte, the last", (before) => joined(before.subarray(0, LARGE - 1), Uint8Array.of(252))],
    ["has one other byte, the first", (before) => joined(Uint8Array.of(252), before.subarray(1))],
  ])("holds the table after a load, though it %s", async (_, change) => {
    const files = stubFiles({ room: 2 * LARGE });
    await load();
    files.set("a", Uint8Array.from(change(Uint8Array.from(files.get("a")!))));
    expect(await load()).toBeLessThan(LARGE);
    expect(areSame(files.get("a")!, table)).toBe(true);
    expect(files.size).toBe(1);
  });

  it("is not kept where the disk does not take all of it", async () => {
    const files = stubFiles();
    const file = await RowFile.open(4, "a");
    expect(() => file.write(new Uint8Array(4), 1)).toThrow("3 of 4 bytes");
    file.close();
    await Promise.resolve();
    expect(files.size).toBe(0);
  });

  it("makes room for the table of another package", async () => {
    const files = stubFiles({ room: LARGE });
    await load();
    await load(table.slice(9), "b");
    expect([...files.keys()]).toEqual(["b"]);
  });

  it("is another one, which goes, where a second engine or tab has it", async () => {
    const files = stubFiles();
    const first = await RowFile.open(4, "a");
    first.write(Uint8Array.of(1, 2, 3, 4), 0);
    const second = await RowFile.open(4, "a");
    second.write(Uint8Array.of(5, 6, 7, 8), 0);
    expect(files.size).toBe(2);
    second.close();
    await Promise.resolve();
    first.close();
    expect([...files]).toEqual([["a", Uint8Array.of(1, 2, 3, 4)]]);
  });

  it("leaves nothing where it no longer has room, or cannot be read at once", async () => {
    for (const limits of [{ room: 3 }, { isSync: false }]) {
      const files = stubFiles(limits);
      files.set("a", new Uint8Array(2));
      await expect(RowFile.open(4, "a")).rejects.toThrow(/no room for 4 bytes|dedicated worker/);
      expect(files.size).toBe(0);
    }
  });

  it("is the one that is kept where a thread that has ended lets go of it a moment later", async () => {
    vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
    try {
      const files = stubFiles();
      const before = await RowFile.open(4, "a");
      before.write(Uint8Array.of(1, 2, 3, 4), 0);
      const opening = RowFile.open(4, "a");
      await vi.advanceTimersByTimeAsync(150); // after its second attempt
      before.close();
      await vi.advanceTimersByTimeAsync(1000);
      const file = await opening;
      file.write(Uint8Array.of(1, 2, 3, 4), 0);
      expect([file.bytesKept, [...files.keys()]]).toEqual([4, ["a"]]);
    } finally {
      vi.useRealTimers();
    }
  });

  it("goes when it is forgotten, unless it is in use", async () => {
    const files = stubFiles();
    for (const name of ["b", "c", "left behind"]) files.set(name, new Uint8Array(1));
    const used = await RowFile.open(1, "a");
    for (const name of ["b", "c"]) files.set(name, new Uint8Array(1));
    await removeRowFiles(["b"]);
    expect([...files.keys()]).toEqual(["a", "b"]);
    used.close();
    await removeRowFiles([]);
    expect(files.size).toBe(0);
    vi.stubGlobal("navigator", {});
    await removeRowFiles([]); // where there can be none
  });
});

describe("readPieces", () => {
  const table = { name: "embed_tokens_per_layer.weight", shape: [4, 2], nbytes: 16, format: "raw" };
  const other = { name: "embed_tokens.weight", shape: [4, 3], nbytes: 24, format: "raw" };
  let asked: string[];
  beforeEach(() => {
    asked = [];
  });
  const read = (list: unknown) =>
    readPieces("https://a/b", async (url) => {
      asked.push(url);
      return new Response(JSON.stringify(list));
    });

  it("finds the tensors of the table", async () => {
    const { format: _, ...piece } = table;
    expect(await read({ records: [{ records: [other] }, { records: [table] }] })).toEqual([piece]);
    expect(asked).toEqual(["https://a/b/tensor-cache.json"]);
  });

  it.each([
    [{}, "lists no shards"],
    [null, "lists no shards"],
    [{ records: [{ records: [other] }] }, "no table"],
    [{ records: [{ records: [{ ...other, shape: [4, 2] }, table] }] }, "cannot be told apart"],
    [{ records: [{ records: [{ ...table, nbytes: 15 }] }] }, "rows of whole bytes"],
    [{ records: [{ records: [{ ...table, shape: [0, 2] }] }] }, "rows of whole bytes"],
    [{ records: [{ records: [{ ...table, format: "f32-to-bf16" }] }] }, "stored raw"],
  ])("refuses %j", async (list, reason) => {
    await expect(read(list)).rejects.toThrow(reason);
  });

  it("says what the server answered", async () => {
    await expect(readPieces("u", async () => new Response("", { status: 404 }))).rejects.toThrow("answered 404");
  });
});
