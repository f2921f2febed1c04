// Files on their way into the cache: little is held of them, and nothing stays of what ends wrong.
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { FileDownload, type Progress } from "../src/download/file";
import { sha256 } from "../src/download/hash";
import { CheckRoom } from "../src/download/piece_check";
import type { Package, PackageFile } from "../src/package/package";
import type { Pieces } from "../src/package/provenance";
import { UserError } from "../src/package/user_error";

const PIECE = 1024;
const CONTENT = Uint8Array.from({ length: 10 * PIECE }, (_, i) => (i * 37 + (i >> 8)) % 256);
const NAME = "params_shard_0.bin";

/** A cache as browsers have it: a file is there once its body has ended well. */
class FakeCache {
  stored = new Map<string, Uint8Array<ArrayBuffer>>();
  taken = 0;
  /** After so many bytes the disk is full. */
  room = Infinity;

  async match(key: string): Promise<Response | undefined> {
    const found = this.stored.get(key);
    return found && new Response(found);
  }

  async delete(key: string): Promise<boolean> {
    return this.stored.delete(key);
  }

  async put(key: string, response: Response): Promise<void> {
    const parts: Uint8Array<ArrayBuffer>[] = [];
    for (const reader = response.body!.getReader(); ; ) {
      const { done, value } = await reader.read();
      if (done) break;
      this.taken += value.length;
      if (this.taken > this.room) {
        await reader.cancel();
        throw new DOMException("full", "QuotaExceededError");
      }
      parts.push(value);
      await new Promise((resolve) => setTimeout(resolve)); // a slow disk
    }
    this.stored.set(key, new Uint8Array(await new Blob(parts).arrayBuffer()));
  }
}

let cache: FakeCache;

beforeEach(() => {
  cache = new FakeCache();
  vi.stubGlobal("caches", { open: async () => cache });
  vi.stubGlobal("addEventListener", vi.fn());
});
afterEach(() => {
  vi.restoreAllMocks();
  vi.unstubAllGlobals();
});

/** An answer that gives a piece when it is asked for one, and breaks off at the end where it `breaks`. */
function answer(data: Uint8Array, given: (bytes: number) => void = vi.fn(), breaks = false, status = 200): Response {
  let at = 0;
  const pull = (controller: ReadableStreamDefaultController<Uint8Array>) => {
    if (at >= data.length) return breaks ? controller.error(new TypeError("network error")) : controller.close();
    const piece = data.slice(at, at + PIECE);
    at += piece.length;
    given(piece.length);
    controller.enqueue(piece);
  };
  return new Response(new ReadableStream({ pull }, { highWaterMark: 0 }), { status });
}

async function downloadOf(content: Uint8Array<ArrayBuffer> = CONTENT, retries = 2, pieces?: Pieces) {
  const file: PackageFile = {
    name: NAME,
    nbytes: content.length,
    sha256: await sha256(content),
    ...(pieces && { pieces }),
  };
  const pack = { url: "https://x.y/", version: "0".repeat(16), files: [file], totalBytes: content.length };
  const whole = { ...pack, shards: new Set([NAME]), drafter: new Set() } as unknown as Package;
  const progress: Progress = {
    checkedBytes: 0,
    downloadedBytes: 0,
    totalBytes: file.nbytes,
    repaired: [],
    waiting: false,
  };
  const report = vi.fn();
  const run = () =>
    new FileDownload(whole, file, retries, progress, report, new AbortController().signal, new CheckRoom()).run();
  return { run, progress, report };
}

it("holds a piece of a file, whatever its size, and no more is asked of the network than the disk takes", async () => {
  let given = 0;
  let held = 0;
  vi.stubGlobal("fetch", async () =>
    answer(CONTENT, (bytes) => {
      given += bytes;
      held = Math.max(held, given - cache.taken);
    }),
  );
  const { run, progress } = await downloadOf();
  await run();
  expect([...cache.stored.values()]).toEqual([CONTENT]);
  expect(held).toBeLessThanOrEqual(2 * PIECE);
  expect(progress).toMatchObject({ checkedBytes: 0, downloadedBytes: CONTENT.length, waiting: false });
});

it.each([
  ["cut off", CONTENT.slice(0, -1)],
  ["too long", Uint8Array.from([...CONTENT, 0])],
  ["endless", new Uint8Array(100 * CONTENT.length)],
  ["empty", new Uint8Array()],
  ["another", CONTENT.map((byte, i) => byte ^ Number(i === 5000))],
])("asks again for a file that is %s, past every cache, and keeps none of it", async (_, wrong) => {
  const modes: unknown[] = [];
  vi.stubGlobal("fetch", async (_url: string, { cache: mode }: RequestInit) => {
    modes.push(mode);
    return answer(modes.length === 1 ? wrong : CONTENT);
  });
  const { run, progress } = await downloadOf();
  await run();
  expect(modes).toEqual(["no-cache", "reload"]);
  expect([...cache.stored.values()]).toEqual([CONTENT]);
  expect(progress.downloadedBytes).toBe(CONTENT.length);

  cache.stored.clear();
  let given = 0;
  vi.stubGlobal("fetch", async () => answer(wrong, (bytes) => (given += bytes)));
  const other = await downloadOf();
  await expect(other.run()).rejects.toThrow(/arrived damaged/);
  expect([cache.stored.size, other.progress.downloadedBytes]).toEqual([0, 0]);
  expect(given, "no more is read than a piece behind the end").toBeLessThanOrEqual(2 * (CONTENT.length + PIECE));
});

it.each([
  ["goes on where the connection broke off", 206],
  ["passes over what it has where the server does no ranges", 200],
])("%s", async (_, status) => {
  vi.stubGlobal("addEventListener", (_name: string, online: () => void) => setTimeout(online)); // back at once
  const ranges: unknown[] = [];
  vi.stubGlobal("fetch", async (_url: string, { headers }: { headers: { range?: string } }) => {
    ranges.push(headers.range);
    if (ranges.length === 1) return answer(CONTENT.slice(0, 2500), undefined, true);
    return answer(status === 206 ? CONTENT.slice(2500) : CONTENT, undefined, false, status);
  });
  const { run, progress } = await downloadOf();
  await run();
  expect(ranges).toEqual([undefined, "bytes=2500-"]);
  expect([...cache.stored.values()]).toEqual([CONTENT]);
  expect(progress.downloadedBytes).toBe(CONTENT.length);
});

it.each([1, 3])(
  "asks for nothing where the connection broke off behind the last byte, of %i piece lengths",
  async (count) => {
    vi.stubGlobal("addEventListener", (_name: string, online: () => void) => setTimeout(online)); // back at once
    const content = CONTENT.slice(0, count * PIECE);
    const ranges: unknown[] = [];
    vi.stubGlobal("fetch", async (_url: string, { headers }: { headers: { range?: string } }) => {
      ranges.push(headers.range);
      if (ranges.length === 1) return answer(content, undefined, true);
      return new Response("", { status: 416 }); // as servers answer a range behind the end
    });
    const { run, progress } = await downloadOf(content, 2, await piecesOf(content, PIECE));
    await run();
    expect(ranges).toEqual([undefined]);
    expect([...cache.stored.values()]).toEqual([content]);
    expect(progress).toMatchObject({ downloadedBytes: content.length, waiting: false });
  },
);

it("keeps nothing of a file whose connection stays broken", async () => {
  vi.stubGlobal("fetch", async () => answer(CONTENT.slice(0, 3000), undefined, true));
  const { run, progress } = await downloadOf(CONTENT, 0);
  await expect(run()).rejects.toThrow(/broke off/);
  expect([cache.stored.size, progress.downloadedBytes]).toEqual([0, 0]);
});

it("keeps nothing of a file for which the disk has no room, and says so", async () => {
  cache.room = 5000;
  vi.stubGlobal("fetch", async () => answer(CONTENT));
  const { run } = await downloadOf();
  const error = await run().catch((each: unknown) => each);
  expect(error).toBeInstanceOf(UserError);
  expect(String(error)).toMatch(/storage for this site is full/);
  expect(cache.stored.size).toBe(0);
});

it("looks at what lies there, and replaces it where it is damaged, whatever its size", async () => {
  const fetched = vi.fn(async () => answer(CONTENT));
  vi.stubGlobal("fetch", fetched);
  const key = `https://x.y/resolve/${"0".repeat(16)}/${NAME}`;
  const { run, progress } = await downloadOf();
  cache.stored.set(key, CONTENT);
  await run();
  expect([progress.checkedBytes, fetched.mock.calls.length]).toEqual([CONTENT.length, 0]);
  for (const wrong of [CONTENT.slice(1), Uint8Array.from([...CONTENT, 0]), CONTENT.map((byte) => byte ^ 1)]) {
    cache.stored.set(key, wrong);
    const again = await downloadOf();
    await again.run();
    expect(again.progress.repaired).toEqual([NAME]);
    expect(cache.stored.get(key)).toEqual(CONTENT);
  }
});

/** What is listed of a content's pieces; these do not divide what comes, and the last one is short. */
async function piecesOf(content: Uint8Array<ArrayBuffer>, nbytes = 3000): Promise<Pieces> {
  const hashes = [];
  for (let at = 0; at < content.length; at += nbytes) hashes.push(await sha256(content.slice(at, at + nbytes)));
  return { nbytes, sha256: hashes };
}

it("hashes a stored file a piece at a time where its pieces are listed", async () => {
  const fetched = vi.fn(async () => answer(CONTENT));
  vi.stubGlobal("fetch", fetched);
  const { run, progress } = await downloadOf(CONTENT, 0, await piecesOf(CONTENT));
  await run();
  expect([fetched.mock.calls.length, progress.downloadedBytes]).toEqual([1, CONTENT.length]);
  const digest = vi.spyOn(crypto.subtle, "digest");
  await run();
  expect(digest.mock.calls.map(([, data]) => data.byteLength)).toEqual([3000, 3000, 3000, 1240]);
  expect([fetched.mock.calls.length, progress.checkedBytes]).toEqual([1, CONTENT.length]);
  const [key] = [...cache.stored.keys()];
  const ends = [CONTENT.map((byte, i) => byte ^ Number(i === 10_239)), CONTENT.slice(0, 9000), CONTENT.slice(0, -1)];
  for (const wrong of [...ends, CONTENT.map((byte, i) => byte ^ Number(i === 0)), Uint8Array.from([...CONTENT, 0])]) {
    cache.stored.set(key!, wrong);
    await run();
    expect(cache.stored.get(key!)).toEqual(CONTENT);
  }
  expect(fetched).toHaveBeenCalledTimes(6);
});

it("stops at the first piece that arrives wrong, and goes on over a broken connection", async () => {
  vi.stubGlobal("addEventListener", (_name: string, online: () => void) => setTimeout(online));
  const pieces = await piecesOf(CONTENT);
  let given = 0;
  const wrong = CONTENT.map((byte, i) => byte ^ Number(i === 100));
  let asked = 0;
  vi.stubGlobal("fetch", async () => {
    asked += 1;
    if (asked === 1) return answer(wrong, (bytes) => (given += bytes));
    if (asked === 2) return answer(CONTENT.slice(0, 2500), undefined, true);
    return answer(CONTENT.slice(2500), undefined, false, 206);
  });
  const { run } = await downloadOf(CONTENT, 1, pieces);
  await run();
  expect(given).toBeLessThanOrEqual(3000 + PIECE);
  expect([asked, [...cache.stored.values()]]).toEqual([3, [CONTENT]]);
});

it.each([0, 1, 3])("keeps nothing of a file whose piece %i is listed otherwise than the whole", async (index) => {
  vi.stubGlobal("fetch", async () => answer(CONTENT));
  const pieces = await piecesOf(CONTENT);
  pieces.sha256[index] = await sha256(CONTENT);
  const { run } = await downloadOf(CONTENT, 0, pieces);
  await expect(run()).rejects.toThrow(/arrived damaged/);
  expect(cache.stored.size).toBe(0);
});

it("keeps nothing of a file that is right by its pieces and not as a whole", async () => {
  const other = CONTENT.map((byte) => byte ^ 1);
  vi.stubGlobal("fetch", async () => answer(other));
  const { run } = await downloadOf(CONTENT, 0, await piecesOf(other));
  await expect(run()).rejects.toThrow(/arrived damaged/);
  expect(cache.stored.size).toBe(0);
});

it("hashes a large stored file without pieces as it is read", async () => {
  const large = new Uint8Array(33 << 20).fill(3);
  const key = `https://x.y/resolve/${"0".repeat(16)}/${NAME}`;
  const { run, progress, report } = await downloadOf(large);
  cache.stored.set(key, large);
  const whole = vi.spyOn(Response.prototype, "arrayBuffer");
  const digest = vi.spyOn(crypto.subtle, "digest");
  await run();
  expect([whole.mock.calls.length, digest.mock.calls.length]).toEqual([0, 0]);
  expect(progress.checkedBytes).toBe(large.length);
  expect(report.mock.calls.length, "there is news all the while").toBeGreaterThan(1);
});

const KEY = `https://x.y/resolve/${"0".repeat(16)}/${NAME}`;
const LONG_MS = 600_000;

/** Nothing more comes, and no error. */
const silent = (data: Uint8Array) =>
  new Response(
    new ReadableStream({ start: (controller) => controller.enqueue(data), pull: () => new Promise(() => undefined) }),
  );

it("goes on with another request where a connection brings nothing more", async () => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
  const ranges: unknown[] = [];
  vi.stubGlobal("fetch", async (_url: string, { headers }: { headers: { range?: string } }) => {
    ranges.push(headers.range);
    return ranges.length === 1 ? silent(CONTENT.slice(0, 2500)) : answer(CONTENT.slice(2500), undefined, false, 206);
  });
  const { run } = await downloadOf();
  const running = run();
  await vi.advanceTimersByTimeAsync(LONG_MS);
  await running;
  vi.useRealTimers();
  expect(ranges).toEqual([undefined, "bytes=2500-"]);
  expect([...cache.stored.values()]).toEqual([CONTENT]);
});

it("bears any number of breaks of a connection that goes on in between", async () => {
  vi.stubGlobal("addEventListener", (_name: string, online: () => void) => setTimeout(online));
  let requests = 0;
  vi.stubGlobal("fetch", async (_url: string, { headers }: { headers: { range?: string } }) => {
    requests += 1;
    const from = Number(/\d+/.exec(headers.range ?? "0")![0]);
    return answer(CONTENT.slice(from, from + PIECE), undefined, from + PIECE < CONTENT.length, from ? 206 : 200);
  });
  const { run } = await downloadOf();
  await run();
  expect(requests).toBe(10);
  expect([...cache.stored.values()]).toEqual([CONTENT]);
});

it.each<[string, () => Promise<Response>]>([
  ["does not find out whether it has it", () => new Promise(() => undefined)],
  ["hands out nothing of it", async () => silent(CONTENT.slice(0, 100))],
])("asks a storage again for a file where it %s, and then says so", async (_, match) => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
  const asked = vi.spyOn(cache, "match").mockImplementation(match);
  const { run } = await downloadOf();
  const failed = run().catch((error: unknown) => error);
  await vi.advanceTimersByTimeAsync(LONG_MS);
  vi.useRealTimers();
  const error = (await failed) as UserError;
  expect(error).toBeInstanceOf(UserError);
  expect(error.message).toContain(`does not hand out ${NAME}`);
  expect(asked).toHaveBeenCalledTimes(2);
});

it("downloads a file anew that cannot be read, which stays where that cannot be", async () => {
  vi.spyOn(console, "warn").mockImplementation(() => undefined);
  const old = CONTENT.slice(1);
  cache.stored.set(KEY, old);
  const unreadable = new DOMException("the disk", "NotReadableError");
  vi.spyOn(cache, "match").mockImplementation(
    async () => new Response(new ReadableStream({ pull: (controller) => controller.error(unreadable) })),
  );
  vi.stubGlobal("fetch", async () => answer(CONTENT, undefined, false, 503));
  await expect((await downloadOf(CONTENT, 0)).run()).rejects.toThrow(/answers 503/);
  expect(cache.stored.get(KEY)).toBe(old);
  vi.stubGlobal("fetch", async () => answer(CONTENT));
  const { run, progress } = await downloadOf();
  await run();
  expect(progress.repaired).toEqual([NAME]);
  expect(cache.stored.get(KEY)).toEqual(CONTENT);
});

it("says which file a browser could not store, whatever its reason", async () => {
  vi.spyOn(console, "warn").mockImplementation(() => undefined);
  vi.stubGlobal("fetch", async () => answer(CONTENT));
  vi.spyOn(cache, "put").mockRejectedValue(new DOMException("Unexpected internal error.", "UnknownError"));
  const { run } = await downloadOf();
  const error = (await run().catch((each: unknown) => each)) as UserError;
  expect(error).toBeInstanceOf(UserError);
  expect(error.message).toContain(`could not store ${NAME}`);
  expect(error.hint).toMatch(/Free space/);
});
