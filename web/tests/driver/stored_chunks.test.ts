import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { forgetBeginnings } from "../../src/choose";
import type { Chunk, KeptChunks } from "../../src/driver/kept_chunks";
import { StoredChunks } from "../../src/driver/stored_chunks";

const FOLDER = "https://example.org/model/";
const full = () => new DOMException("no room", "QuotaExceededError");

/** What the browser has stored: bytes by name, whichever way they come there; behind a place's name where it has another. */
let stored: Map<string, Uint8Array>;
/** Bytes that may be written yet. */
let room: number;
let free: number | undefined;

async function take(name: string, parts: AsyncIterable<Uint8Array> | Iterable<Uint8Array>) {
  const taken: Uint8Array[] = [];
  for await (const part of parts) {
    room -= part.byteLength;
    if (room < 0) throw full();
    taken.push(part.slice());
  }
  stored.set(name, new Uint8Array(await new Blob(taken as Uint8Array<ArrayBuffer>[]).arrayBuffer()));
}

const blobOf = (name: string) => new Blob([stored.get(name)! as Uint8Array<ArrayBuffer>]);

const PLACE = "gemma4-web-beginnings";
const prefixOf = (place: string) => (place === PLACE ? "" : `${place}/`);
const namesAt = (prefix: string) =>
  [...stored.keys()]
    .filter((name) => name.startsWith(prefix) && !name.slice(prefix.length).includes("/"))
    .map((name) => name.slice(prefix.length));

/** The origin's private file system; without `isSync` as a page has it. */
function folder(isSync: boolean, prefix: string) {
  const handleOf = (name: string) => {
    const parts: Uint8Array[] = [];
    const file = {
      getFile: async () => blobOf(name),
      createWritable: async () => ({
        write: async (part: Uint8Array) => void parts.push(part),
        close: () => take(name, parts),
      }),
    };
    const createSyncAccessHandle = async () => ({
      truncate: () => stored.set(name, new Uint8Array()),
      write: (part: Uint8Array, { at }: { at: number }) => {
        room -= part.byteLength;
        if (room < 0) return part.byteLength - 1; // as a disk that is full
        const whole = new Uint8Array(at + part.byteLength);
        whole.set(stored.get(name)!);
        whole.set(part, at);
        stored.set(name, whole);
        return part.byteLength;
      },
      close: () => undefined,
    });
    return isSync ? { ...file, createSyncAccessHandle } : file;
  };
  return {
    getFileHandle: async (own: string, { create = false } = {}) => {
      const name = prefix + own;
      if (!stored.has(name) && !create) throw new DOMException(name, "NotFoundError");
      if (!stored.has(name)) stored.set(name, new Uint8Array());
      return handleOf(name);
    },
    removeEntry: async (name: string) => void stored.delete(prefix + name),
    async *keys() {
      yield* namesAt(prefix);
    },
  };
}

const ADDRESS = "https://beginnings.invalid/";
const cache = (prefix: string) => ({
  keys: async () => namesAt(prefix).map((name) => ({ url: ADDRESS + name })),
  match: async (url: string) => {
    const name = prefix + url.slice(ADDRESS.length);
    return stored.has(name) ? new Response(blobOf(name)) : undefined;
  },
  put: async (url: string, response: Response) =>
    take(prefix + url.slice(ADDRESS.length), response.body as unknown as AsyncIterable<Uint8Array>),
  delete: async (url: string) => stored.delete(prefix + url.slice(ADDRESS.length)),
});

type Form = "in a worker" | "in a page" | "without a file system";
function stub(form: Form) {
  const getDirectory = async () => {
    if (form === "without a file system") throw new DOMException("a private window", "SecurityError");
    return { getDirectoryHandle: async (place: string) => folder(form === "in a worker", prefixOf(place)) };
  };
  const estimate = async () => (free === undefined ? {} : { quota: free, usage: 0 });
  vi.stubGlobal("navigator", { storage: { getDirectory, estimate } });
  const has = async (place: string) => [...stored.keys()].some((name) => name.startsWith(prefixOf(place)));
  vi.stubGlobal("caches", { has, open: async (place: string) => cache(prefixOf(place)) });
}

beforeEach(() => {
  stored = new Map();
  room = Infinity;
  free = undefined;
  stub("in a worker");
});
afterEach(() => vi.unstubAllGlobals());

/** Chunks on a device, of these bytes. */
class Kept {
  readonly chunks = new Map<Chunk, Uint8Array>();
  recent: Chunk[] = [];
  isLost = false;
  refreshed: Chunk[] = [];

  add(name: string, bytes: Uint8Array, parent?: Chunk): Chunk {
    const buffer = { size: bytes.byteLength } as GPUBuffer;
    const rest = { layout: "2,4", isThere: true, arrival: Promise.resolve(), children: new Map<string, Chunk>() };
    const chunk = { parent, name, buffer, ...rest };
    this.chunks.set(chunk, bytes);
    this.recent.push(chunk);
    return chunk;
  }

  takeUsed = () => this.recent.splice(0);
  refresh = (chunk: Chunk) => void this.refreshed.push(chunk);

  async *contents(chunk: Chunk, pieceBytes: number) {
    const bytes = this.chunks.get(chunk)!;
    for (let at = 0; at < bytes.byteLength; at += pieceBytes) yield bytes.slice(at, at + pieceBytes);
  }

  async admit(
    parent: Chunk | undefined,
    name: string,
    layout: string,
    size: number,
    pieces: AsyncIterable<Uint8Array>,
  ) {
    expect(layout).toBe("2,4");
    expect(!parent || this.chunks.has(parent)).toBe(true);
    const parts: Uint8Array<ArrayBuffer>[] = [];
    for await (const piece of pieces) parts.push(piece.slice());
    const bytes = new Uint8Array(await new Blob(parts).arrayBuffer());
    expect(bytes.byteLength).toBe(size);
    return this.add(name, bytes, parent);
  }

  /** Texts of names from the first chunk on, with what they hold. */
  get all(): Record<string, string> {
    const nameOf = (one: Chunk): string => `${one.parent ? `${nameOf(one.parent)} ` : ""}${one.name}`;
    return Object.fromEntries([...this.chunks].map(([one, bytes]) => [nameOf(one), `${bytes.length}:${bytes.at(-1)}`]));
  }
}

const open = async (kept: Kept, mostBytes = 1e9, identity = "1", at = FOLDER, application?: string) =>
  (await StoredChunks.open(kept as unknown as KeptChunks, at, [identity], mostBytes, application))!;

const filled = (size: number, value: number) => new Uint8Array(size).fill(value);

/** Two chats: a common chunk, and one of their own each. */
async function twoChats(mostBytes?: number, application?: string) {
  const kept = new Kept();
  const store = await open(kept, mostBytes, undefined, undefined, application);
  store.begin("one");
  const common = kept.add("1,2", filled(100, 1));
  const first = kept.add("3,4", filled(100, 2), common);
  expect(await store.save("one")).toBeUndefined();
  store.begin("two");
  kept.recent.push(common);
  const second = kept.add("5,6", filled(100, 3), common);
  expect(await store.save("two")).toBeUndefined();
  return { kept, store, common, first, second };
}

async function restored(identity?: string, at?: string, application?: string): Promise<Kept> {
  const kept = new Kept();
  await (await open(kept, 1e9, identity, at, application)).restore();
  return kept;
}

const BOTH = { "1,2": "100:1", "1,2 3,4": "100:2", "1,2 5,6": "100:3" };
const data = () => [...stored.keys()].filter((name) => name.endsWith(".data"));

describe.each<Form>(["in a worker", "in a page", "without a file system"])("%s", (form) => {
  beforeEach(() => stub(form));

  it("brings back what was written, in pieces, each behind the one that it follows", async () => {
    const { kept } = await twoChats();
    kept.recent = [];
    const large = new Uint8Array(9 << 20).map((_, i) => i * 7 + (i >> 9));
    kept.add("7,8", large);
    await (await open(kept)).save("three");
    const again = await restored();
    expect(again.all).toEqual({ ...BOTH, "7,8": `${large.length}:${large.at(-1)}` });
    const found = [...again.chunks].find(([{ name }]) => name === "7,8")![1];
    expect(found.every((byte, i) => byte === large[i])).toBe(true);
    expect(again.refreshed.at(-1)?.name).toBe("7,8"); // used last, and so to be kept longest
  });

  it("forgets what a chat alone has used", async () => {
    await twoChats();
    await forgetBeginnings({ owners: ["two", "nobody"] });
    expect((await restored()).all).toEqual({ "1,2": "100:1", "1,2 3,4": "100:2" });
    await forgetBeginnings({ owners: ["one"] });
    expect(data()).toEqual([]);
  });
});

describe.each<Form>(["in a worker", "without a file system"])("on an origin with other applications, %s", (form) => {
  beforeEach(() => stub(form));
  const names = [undefined, "a", "b"] as const;
  const of = async (application?: string) => (await restored(undefined, undefined, application)).all;

  it("keeps, restores and forgets its own alone", async () => {
    for (const name of names) await twoChats(undefined, name);
    await forgetBeginnings({ application: "a", owners: ["two"] });
    expect(await Promise.all(names.map(of))).toEqual([BOTH, { "1,2": "100:1", "1,2 3,4": "100:2" }, BOTH]);
    await forgetBeginnings({ application: "b", butPackages: [], butOwners: [] });
    expect(await Promise.all(names.map(of))).toEqual([BOTH, { "1,2": "100:1", "1,2 3,4": "100:2" }, {}]);
    await forgetBeginnings();
    expect((await Promise.all(names.map(of))).map((all) => Object.keys(all).length)).toEqual([0, 2, 0]);
    for (const application of ["a", "b"]) await forgetBeginnings({ application });
    expect([...stored.keys()]).toEqual([]);
  });

  it("has a budget of its own", async () => {
    await twoChats(300, "a");
    const other = new Kept();
    other.add("9", filled(250, 9));
    await (await open(other, 300, undefined, undefined, "b")).save("one");
    expect(await of("a")).toEqual(BOTH);
    expect(await of("b")).toEqual({ "9": "250:9" });
  });
});

it("forgets all, other packages, and others than the chats that there are", async () => {
  await twoChats();
  const other = new Kept();
  other.add("1,2", filled(8, 4));
  await (await open(other, 1e9, "2", "https://example.org/other/")).save("one");
  await forgetBeginnings({ butPackages: [`${FOLDER}resolve/0123456789abcdef/`], butOwners: ["two"] });
  expect((await restored()).all).toEqual({ "1,2": "100:1", "1,2 5,6": "100:3" });
  expect((await restored("2", "https://example.org/other/")).all).toEqual({});
  await forgetBeginnings();
  expect([...stored.keys()]).toEqual([]);
});

it("tells how much is back, so that a reply may begin before all is", async () => {
  await twoChats();
  const heard: number[] = [];
  await (await open(new Kept())).restore((bytes) => heard.push(bytes));
  expect(heard).toEqual([100, 200, 300]);
});

it("removes what is of other files, another library or another context", async () => {
  await twoChats();
  expect((await restored("3")).all).toEqual({});
  expect(data()).toEqual([]);
});

it("takes no file that is not as it was written, and removes it", async () => {
  await twoChats();
  const sound = new Map(stored);
  const changes: [string, (bytes: Uint8Array) => Uint8Array | undefined][] = [
    ["a bit", (bytes) => bytes.map((byte, i) => (i === bytes.length >> 1 ? byte ^ 4 : byte))],
    ["cut off", (bytes) => bytes.slice(0, -1)],
    ["empty", () => new Uint8Array()],
    ["gone", () => undefined],
    ["another", (bytes) => bytes.map(() => 55)],
  ];
  for (const name of sound.keys()) {
    for (const [what, change] of changes) {
      stored = new Map(sound);
      const changed = change(stored.get(name)!);
      if (changed) stored.set(name, changed);
      else stored.delete(name);
      const { all } = await restored();
      const isMark = name === "used" || name.includes(".of-");
      expect(BOTH, `${name}: ${what}`).toMatchObject(all);
      if (isMark) expect(all, `${name}: ${what}`).toEqual(BOTH);
      else expect(Object.keys(all).length, `${name}: ${what}`).toBeLessThan(3);
      expect(Object.keys(all).length, `${name}: ${what}`).toBe(data().length);
    }
  }
});

it("holds no more than it may, and lets go of what was used longest ago", async () => {
  vi.useFakeTimers({ toFake: ["Date"] });
  try {
    vi.setSystemTime(1000);
    const { kept, store, common } = await twoChats(300);
    vi.setSystemTime(2000);
    store.begin("three");
    kept.recent.push(common);
    kept.add("9", filled(100, 9), common);
    await store.save("three");
    expect(data().length).toBe(3);
    expect((await restored()).all).toMatchObject({ "1,2": "100:1", "1,2 9": "100:9" });
    store.begin("four");
    kept.add("too much", filled(301, 5));
    await store.save("four");
    expect((await restored()).all).not.toHaveProperty("too much");
  } finally {
    vi.useRealTimers();
  }
});

it("lets go of the end of what was used longest ago, which is of no use without its beginning", async () => {
  vi.useFakeTimers({ toFake: ["Date"] });
  try {
    const kept = new Kept();
    const store = await open(kept, 300);
    const { contents } = kept;
    kept.contents = async function* (chunk, bytes) {
      vi.setSystemTime(Date.now() + 50); // it takes a while
      yield* contents.call(kept, chunk, bytes);
    };
    const first = kept.add("1", filled(100, 1));
    const second = kept.add("2", filled(100, 2), first);
    kept.add("3", filled(100, 3), second);
    await store.save("one");
    kept.add("4", filled(100, 4));
    await store.save("two");
    expect((await restored()).all).toEqual({ "1": "100:1", "1 2": "100:2", "4": "100:4" });
  } finally {
    vi.useRealTimers();
  }
});

it("counts what was written before the room ended", async () => {
  const kept = new Kept();
  kept.add("1", filled(100, 1));
  kept.add("2", filled(300, 2));
  room = 2000;
  const { contents } = kept;
  kept.contents = async function* (chunk, bytes) {
    if (chunk.name === "2") room = 0;
    yield* contents.call(kept, chunk, bytes);
  };
  expect(await (await open(kept)).save("one")).toMatch(/full/);
  room = Infinity;
  const again = new Kept();
  again.add("3", filled(100, 3));
  await (await open(again, 150)).save("two");
  expect((await restored()).all).toEqual({ "3": "100:3" });
});

it.each<[string, () => void]>([
  ["the disk is full", () => (room = 350)],
  ["there is little room", () => (free = 1000)],
])("says once that nothing is written any more where %s", async (_, happens) => {
  const kept = new Kept();
  const store = await open(kept);
  kept.add("1,2", filled(100, 1));
  await store.save("one");
  happens();
  kept.add("3,4", filled(300, 2));
  expect(await store.save("one")).toMatch(/full|no more/);
  kept.add("5,6", filled(8, 3));
  expect(await store.save("one")).toBeUndefined();
  expect((await restored()).all).toEqual({ "1,2": "100:1" });
  expect(data().length).toBe(1); // nothing half-written
});

it("leaves the loss of the device to who tells of it", async () => {
  const kept = new Kept();
  const store = await open(kept);
  kept.add("1,2", filled(100, 1));
  kept.contents = async function* () {
    yield filled(8, 1);
    kept.isLost = true;
    throw new DOMException("the device is lost", "AbortError");
  };
  expect(await store.save("one")).toBeUndefined();
  expect(data()).toEqual([]);
});

it("writes nothing for a chat that was deleted meanwhile, until it is there again", async () => {
  const kept = new Kept();
  const store = await open(kept);
  store.begin("one");
  kept.add("1,2", filled(100, 1));
  const saving = store.save("one");
  store.forget(["one"]);
  await saving;
  expect(data()).toEqual([]);
  store.begin("one");
  kept.add("1,2", filled(100, 1));
  await store.save("one");
  expect(data().length).toBe(1);
  store.forget();
  kept.add("3,4", filled(100, 1));
  await store.save("two");
  expect(data().length).toBe(1);
});
