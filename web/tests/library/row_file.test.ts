import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { RowFile } from "../../src/library/row_file";
import { readPieces } from "../../src/library/table_index";

/** A file system whose files are names; those that are open cannot be removed. */
function stubFiles({ room = 100, isSync = true } = {}) {
  const files = new Map<string, Uint8Array>();
  const open = new Set<string>();
  const handleOf = (name: string) => {
    open.add(name);
    return {
      truncate: (bytes: number) => {
        if (bytes > room) throw new DOMException("full", "QuotaExceededError");
        files.set(name, new Uint8Array(bytes));
      },
      write: (bytes: Uint8Array, { at }: { at: number }) => {
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
      files.set(name, new Uint8Array());
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
  return files;
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
