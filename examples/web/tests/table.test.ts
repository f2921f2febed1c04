import { beforeEach, expect, it, vi } from "vitest";
import type { Package, TableWish } from "../src/package/package";
import { neededMemory } from "../src/package/requirements";
import { withTable } from "../src/package/table";
import { GIB } from "../src/package/units";

const PACK = {
  url: "https://example.org/model/",
  files: [{ name: "params_shard_drafter_0.bin", nbytes: GIB / 2, sha256: "" }],
  totalBytes: 3 * GIB,
  drafter: new Set(["params_shard_drafter_0.bin"]),
  hasDrafter: true,
  libraries: [] as Package["libraries"],
  contextLength: 1000,
  requirements: {
    weightsBytes: 3 * GIB,
    kvSlidingBytes: 0,
    kvFullBytes: GIB,
    activationBytes: 0,
    hostTableBytes: GIB,
  },
} as Package;

const wishes = (table: TableWish, allowedMemory = 0, fast = true) => ({ table, allowedMemory, fast });

beforeEach(() => {
  vi.stubGlobal("navigator", { userAgent: "", storage: { getDirectory: async () => ({}) } });
  return () => vi.unstubAllGlobals();
});

it("leaves a package without a table as it is", async () => {
  const bare = { ...PACK, requirements: { ...PACK.requirements, hostTableBytes: 0 } };
  expect(await withTable(bare, wishes("host"), 1000)).toBe(bare);
});

it("chooses by the memory of the context that is wanted, drafter included", async () => {
  const place = async (context: number, allowed: number) =>
    (await withTable(PACK, wishes("auto", allowed), context)).table?.place;
  expect(await place(1000, 4 * GIB)).toBe("device");
  expect(await place(1000, 4 * GIB - 1)).toBe("host");
  expect(await place(500, 4 * GIB - 1)).toBe("device");
});

it("does not count a table on the host, and keeps the drafter", async () => {
  const found = await withTable(PACK, wishes("host"), 1000);
  expect(found.table).toEqual({ place: "host", why: "it was asked for", savedBytes: GIB, wish: "host" });
  expect([found.drafter.size, found.totalBytes]).toEqual([1, 3 * GIB]);
  expect(neededMemory(found, 1000)).toBe(3 * GIB);
});

it("chooses anew for a package that has a place", async () => {
  const before = await withTable(PACK, wishes("host"), 1000);
  const found = await withTable({ ...PACK, table: before.table! }, wishes("device"), 1000);
  expect(found.table?.place).toBe("device");
  expect(neededMemory(found, 1000)).toBe(4 * GIB);
});

it.each<[string, ReturnType<typeof wishes>, object | undefined, RegExp]>([
  ["without fast decoding", wishes("host", 0, false), {}, /only fast decoding/],
  ["without a file system", wishes("host"), undefined, /no file system/],
])("leaves it on the device %s, and says so", async (_, settings, directory, why) => {
  vi.stubGlobal("navigator", { userAgent: "", storage: directory && { getDirectory: async () => directory } });
  const { table, drafter } = await withTable(PACK, settings, 1000);
  expect(table?.place).toBe("device");
  expect(table?.why).toMatch(why);
  expect(drafter).toBe(PACK.drafter);
});
