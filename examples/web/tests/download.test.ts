// A download that is ended writes nothing afterwards: whoever removes the package's files waits for it.
import { afterEach, expect, it, vi } from "vitest";
import { download } from "../src/download/download";
import { sha256 } from "../src/download/hash";
import { READ_BY_CLIENT, type Package } from "../src/package/package";

afterEach(() => vi.unstubAllGlobals());

const SHARD = new TextEncoder().encode("a shard");

async function packageOf(names: string[]): Promise<Package> {
  const files = await Promise.all(
    names.map(async (name) => ({ name, nbytes: SHARD.length, sha256: await sha256(SHARD) })),
  );
  const [shards, drafter] = [new Set(names), new Set()];
  return { url: "https://x.y/", version: "0".repeat(16), files, totalBytes: 0, shards, drafter } as unknown as Package;
}

/** A cache into which each file comes when it is let, and the names that have come. */
function slowCache() {
  const written: string[] = [];
  const waiting: (() => void)[] = [];
  const put = async (key: string, response: Response) => {
    await response.arrayBuffer();
    await new Promise<void>((resolve) => waiting.push(resolve));
    written.push(key.split("/").at(-1)!);
  };
  vi.stubGlobal("caches", { open: async () => ({ keys: async () => [], match: async () => undefined, put }) });
  return { written, waiting };
}

it("ends after the last of its writes, and begins no other", async () => {
  const { written, waiting } = slowCache();
  vi.stubGlobal("fetch", async () => new Response(SHARD));
  const abort = new AbortController();
  let isOver = false;
  const pack = await packageOf([...READ_BY_CLIENT, "a", "b"]);
  const done = download(pack, vi.fn(), abort.signal).finally(() => (isOver = true));
  done.catch(() => undefined);
  await vi.waitFor(() => expect(waiting).toHaveLength(1));
  abort.abort("removed");
  await new Promise((resolve) => setTimeout(resolve));
  expect(isOver).toBe(false);
  waiting[0]!();
  await expect(done).rejects.toBe("removed");
  expect(written.sort()).toEqual(READ_BY_CLIENT.slice(0, 1));
});

it("writes nothing where it was ended before its first file", async () => {
  const { waiting } = slowCache();
  const fetched = vi.fn();
  vi.stubGlobal("fetch", fetched);
  await expect(download(await packageOf(READ_BY_CLIENT), vi.fn(), AbortSignal.abort("removed"))).rejects.toBe(
    "removed",
  );
  expect([fetched.mock.calls, waiting]).toEqual([[], []]);
});

it("tells of the file that failed, and asks for none after it", async () => {
  const { waiting } = slowCache();
  const asked: string[] = [];
  vi.stubGlobal("fetch", async (url: string) => {
    asked.push(url.split("/").at(-1)!);
    return new Response("", { status: 404 });
  });
  const pack = await packageOf(["a", ...READ_BY_CLIENT]);
  await expect(download(pack, vi.fn(), new AbortController().signal)).rejects.toThrow(/a answers 404/);
  expect([asked, waiting]).toEqual([["a"], []]);
});

it("asks for weights after what is small", async () => {
  const asked: string[] = [];
  const put = async (_: string, response: Response) => void (await response.arrayBuffer());
  vi.stubGlobal("caches", { open: async () => ({ keys: async () => [], match: async () => undefined, put }) });
  vi.stubGlobal("fetch", async (url: string) => {
    asked.push(url.split("/").at(-1)!);
    return new Response(SHARD);
  });
  const pack = await packageOf(["a", ...READ_BY_CLIENT, "model.wasm", "b"]);
  pack.shards = new Set(["a", "b"]);
  await download(pack, vi.fn(), new AbortController().signal);
  expect(asked).toEqual([...READ_BY_CLIENT, "model.wasm", "a", "b"]);
});
