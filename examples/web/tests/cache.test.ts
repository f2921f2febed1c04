// Which entries of the browser's caches belong to a package.
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import {
  dropOtherVersions,
  isKept,
  keyOf,
  removeAllPackages,
  removePackage,
  storedPackages,
  tidy,
} from "../src/download/cache";
import type { Package } from "../src/package/package";

const VERSION = "0123456789abcdef";
const OUTER = "https://x.y/";
// Below it, two of them where the versions of the outer one lie.
const INNER = ["https://x.y/below/", "https://x.y/resolve/below/", `https://x.y/resolve/${VERSION}/`];
const pack = (url: string, version = VERSION) => ({ url, version }) as Package;

describe("the entries of a package", () => {
  let stores: Map<string, Set<string>>;
  const all = () => [...stores.values()].flatMap((urls) => [...urls]).sort();
  const put = (name: string, url: string) => stores.set(name, (stores.get(name) ?? new Set()).add(url));

  beforeEach(() => {
    stores = new Map();
    const open = async (name: string) => ({
      keys: async () => [...(stores.get(name) ?? [])].map((url) => ({ url })),
      match: async (url: string) => (stores.get(name)?.has(url) ? new Response() : undefined),
      delete: async ({ url }: { url: string }) => stores.get(name)!.delete(url),
    });
    vi.stubGlobal("caches", { open, delete: async (name: string) => stores.delete(name) });
    for (const url of [OUTER, ...INNER]) {
      put("webllm/model", keyOf(pack(url), "params_shard_0.bin"));
      put("gemma4/packages", `${url}provenance.json`);
    }
  });
  afterEach(() => vi.unstubAllGlobals());

  it("go alone: those of packages below its folder stay", async () => {
    await removePackage(OUTER);
    expect(await storedPackages()).toEqual([...INNER].sort());
    expect(all()).toHaveLength(2 * INNER.length);
    expect(await isKept(OUTER)).toBe(false);
    expect(await Promise.all(INNER.map(isKept))).toEqual(INNER.map(() => true));
  });

  it("has its table of per-layer embeddings in storage removed with it, and with all of them", async () => {
    const nameOf = async (url: string) => {
      const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(url));
      return Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
    };
    const files = new Set([await nameOf(OUTER), await nameOf(INNER[0]!), "of a thread that ended"]);
    const folder = {
      keys: async function* () {
        yield* [...files];
      },
      removeEntry: async (name: string) => void files.delete(name),
    };
    vi.stubGlobal("navigator", {
      storage: { getDirectory: async () => ({ getDirectoryHandle: async () => folder }) },
    });
    for (const url of INNER.slice(1)) await removePackage(url); // one that names the outer one, too, as its revision
    await removePackage(OUTER);
    expect([...files]).toEqual([await nameOf(INNER[0]!)]);
    await removeAllPackages();
    expect(files.size).toBe(0);
  });

  it("are not those of another application of the origin, which stay", async () => {
    const foreign = ["https://x.y/other/model/params_shard_0.bin", "https://hub.example/resolve/main/config.json"];
    for (const url of foreign) put("webllm/model", url);
    expect(await storedPackages()).toEqual([OUTER, ...INNER].sort());
    await removeAllPackages();
    expect(all()).toEqual([...foreign].sort());
  });

  it("of another version go, and those of packages below its folder stay", async () => {
    await dropOtherVersions(pack(OUTER, "f".repeat(16)));
    expect(await storedPackages()).toEqual([...INNER].sort());
  });
});

describe("beginnings that an earlier version of the page kept without its name", () => {
  const nameOf = async (text: string) => {
    const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text)));
    return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0"))
      .join("")
      .slice(0, 16);
  };

  /** Folders of the origin's files, by their names; what was looked for. */
  function fakeFolders(folders: Map<string, Set<string>>) {
    const made: string[] = [];
    const folderOf = (files: Set<string>) => ({
      keys: async function* () {
        yield* [...files];
      },
      removeEntry: async (name: string) => void files.delete(name),
      getFileHandle: async () => {
        throw new DOMException("none", "NotFoundError");
      },
    });
    const getDirectoryHandle = async (name: string, { create }: { create: boolean }) => {
      if (create) made.push(name);
      const files = folders.get(name);
      if (!files) throw new DOMException("none", "NotFoundError");
      return folderOf(files);
    };
    vi.stubGlobal("navigator", { storage: { getDirectory: async () => ({ getDirectoryHandle }) } });
    const kept = new Map<string, string>();
    const storage = {
      getItem: (key: string) => kept.get(key) ?? null,
      setItem: (key: string, text: string) => kept.set(key, text),
    };
    vi.stubGlobal("localStorage", storage);
    vi.stubGlobal("caches", { open: async () => ({ keys: async () => [] }), has: async () => false });
    return made;
  }

  afterEach(() => vi.unstubAllGlobals());

  it("go once with its chats' names, and others' stay", async () => {
    const [mine, others] = [`.of-${await nameOf("my chat")}`, `.of-${await nameOf("another application's")}`];
    const chunk = (base: string, ...marks: string[]) => [".data", ".json", ...marks].map((end) => base + end);
    const before = [...chunk("p-1", mine), ...chunk("p-2", mine, others), ...chunk("q-1", others), "used"];
    const files = new Set(before);
    const made = fakeFolders(new Map([["gemma4-web-beginnings", files]]));
    await tidy(["my chat"]);
    expect([...files]).toEqual([...chunk("p-2", others), ...chunk("q-1", others), "used"]);
    files.add(`q-1${mine}`); // as nobody of this version does
    await tidy(["my chat"]);
    expect(files.has(`q-1${mine}`)).toBe(true);
    expect(made).toEqual([]);
  });

  it("are looked for again where they could not be removed, and no folder is made for that", async () => {
    const files = new Set([`p-1.json`, `p-1.of-${await nameOf("a")}`]);
    const folders = new Map<string, Set<string>>();
    const made = fakeFolders(folders);
    const { storage } = navigator;
    vi.stubGlobal("navigator", { storage, locks: { request: () => Promise.reject(new Error("another tab")) } });
    folders.set("gemma4-web-beginnings", files);
    await tidy(["a"]);
    expect(files.size).toBe(2);
    vi.stubGlobal("navigator", { storage });
    await tidy(["a"]);
    expect([files.size, made]).toEqual([0, []]);
  });
});
