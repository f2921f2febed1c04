import { describe, expect, it } from "vitest";
import { packageOf, tablePlace, type PlaceSurroundings } from "../../src/choose/place";
import { KeptPace } from "../../src/choose/kept_pace";
import type { TableOptions } from "../../src/choose/options";
import { isMobileAgent, pageMemory, placeOfTable, type PlaceFacts } from "../../src/choose/table_place";
import { FakeBrowser, FakePackage } from "../fake_choice";

const MIB = 2 ** 20;
const GIB = 2 ** 30;
const MEMORY = (bytes: number) => ({ bytes, why: "the machine has less" });
/** E2B in q4f16 on a device that nothing is known of. */
const E2B: PlaceFacts = {
  wanted: undefined,
  savedBytes: 1.2 * GIB,
  neededBytes: 2.7 * GIB,
  memory: undefined,
  isMobile: false,
  problem: undefined,
  drafts: false,
  pace: undefined,
};
const SLOW = { stepMs: 60, aloneMs: 63 };
const REFUSED = "the browser refuses";

describe("placeOfTable", () => {
  it.each<[string, Partial<PlaceFacts>, "device" | "host", RegExp]>([
    ["nothing is known", {}, "device", /nobody has measured/],
    ["it fits", { memory: MEMORY(3 * GIB) }, "device", /there is room/],
    ["it does not fit", { memory: MEMORY(2 * GIB) }, "host", /takes 2\.7 GiB, and the machine has less$/],
    ["it fits to the byte", { memory: MEMORY(2.7 * GIB) }, "device", /there is room/],
    ["it would not fit either way", { memory: MEMORY(GIB) }, "host", /takes 2\.7 GiB/],
    ["not even with drafts", { memory: MEMORY(2 * GIB), drafts: true }, "host", /takes 2\.7 GiB/],
    ["a phone with room", { isMobile: true, memory: MEMORY(4 * GIB) }, "host", /a phone/],
    ["a phone and a small table", { isMobile: true, savedBytes: 5 * MIB }, "device", /it takes 5 MiB alone/],
    ["a small table that is too much", { savedBytes: 5 * MIB, memory: MEMORY(2 * GIB) }, "host", /takes 2\.7 GiB/],
    ["a slow device", { pace: SLOW }, "host", /takes 60 ms ahead .*, and 63 ms one at a time: next to nothing is lost/],
    ["a slow device with drafts", { pace: SLOW, drafts: true }, "device", /drafted/],
    ["a tenth is lost", { pace: { ...SLOW, aloneMs: 66 } }, "device", /room for it, and a step takes 60 ms/],
    ["a fast device", { pace: { stepMs: 5, aloneMs: 8.123 } }, "device", /5 ms .* 8\.12 ms/],
    ["no table, on a phone", { savedBytes: 0, isMobile: true, memory: MEMORY(GIB) }, "device", /no such table/],
    ["no table, asked for", { savedBytes: 0, wanted: "host" }, "device", /no such table/],
    ["damaged sizes", { savedBytes: Number.NaN, isMobile: true }, "device", /no such table/],
    ["no files", { problem: REFUSED, isMobile: true, memory: MEMORY(GIB) }, "device", /^the browser refuses$/],
    ["no files, asked for", { problem: REFUSED, wanted: "host" }, "device", /^the browser refuses$/],
    ["asked for on the host", { wanted: "host" }, "host", /asked for/],
    ["asked for on the host with drafts", { wanted: "host", drafts: true }, "host", /asked for/],
    ["asked for on the device", { wanted: "device", isMobile: true, memory: MEMORY(GIB) }, "device", /asked for/],
  ])("%s", (_, changes, place, why) => {
    const found = placeOfTable({ ...E2B, ...changes });
    expect(found.place).toBe(place);
    expect(found.why).toMatch(why);
  });
});

describe("pageMemory", () => {
  it.each<[string, [number, number, number, boolean], number | undefined, RegExp]>([
    ["nothing is told", [0, 0, 0, false], undefined, /^$/],
    ["what a person allows comes first", [6 * GIB, GIB, 256 * MIB, true], 6 * GIB, /6 GiB are allowed/],
    ["a machine of 4", [0, 4 * GIB, 4 * GIB, false], 3 * GIB, /the machine has about 4 GiB/],
    ["8 stands for any more", [0, 8 * GIB, 4 * GIB, false], undefined, /^$/],
    ["a phone of 8", [0, 8 * GIB, 4 * GIB, true], 1.4 * GIB, /a phone lets a page have about 1\.4 GiB/],
    ["a phone of 1", [0, GIB, 4 * GIB, true], 0.75 * GIB, /1 GiB/],
    ["small buffers", [0, 0, 512 * MIB, false], 2 * GIB, /buffers end at 512 MiB/],
    ["large buffers", [0, 0, GIB, false], undefined, /^$/],
  ])("%s", (_, [allowed, told, largest, isMobile], bytes, why) => {
    const found = pageMemory(allowed, told, largest, isMobile);
    expect(found?.bytes).toBe(bytes);
    expect(found?.why ?? "").toMatch(why);
  });
});

it.each([
  ["Mozilla/5.0 (Linux; Android 15; Pixel 9) Chrome/141.0 Mobile Safari/537.36", 5, true],
  ["Mozilla/5.0 (iPhone; CPU iPhone OS 26_0 like Mac OS X) Safari/605", 5, true],
  ["Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) Safari/605", 5, true],
  ["Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) Safari/605", 0, false],
  ["Mozilla/5.0 (Windows NT 10.0) Chrome/141.0", 10, false],
])("knows phones and tablets: %s, %d touches", (agent, touches, isMobile) => {
  expect(isMobileAgent(agent, touches)).toBe(isMobile);
});

it.each([
  ["https://h.org/m", "https://h.org/m/"],
  ["https://h.org/m/resolve/main/", "https://h.org/m/"],
  ["https://h.org/o/n/resolve/main/resolve/0123456789abcdef/", "https://h.org/o/n/"],
  ["https://h.org/resolve/m/x/", "https://h.org/resolve/m/x/"],
])("knows a package by its folder: %s", (url, folder) => expect(packageOf(url)).toBe(folder));

describe("tablePlace", () => {
  const AT = "https://example.org/model/resolve/main/";
  const AGENT = "Windows";
  const NEEDS = { weights_bytes: 5 * GIB, kv_full_bytes: GIB, activation_bytes: 8, host_table_bytes: 2 * GIB };
  const DEVICE = { vendor: "v", architecture: "", device: "", description: "" };

  function around(changes: Partial<PlaceSurroundings> = {}): PlaceSurroundings {
    const adapter = { info: DEVICE, limits: { maxBufferSize: 4 * GIB } } as unknown as GPUAdapter;
    return {
      gpu: { requestAdapter: async () => adapter },
      store: new FakeBrowser({}).around.store,
      storage: { getDirectory: async () => ({}) as FileSystemDirectoryHandle },
      userAgent: AGENT,
      touches: 0,
      toldBytes: 0,
      now: () => 1000,
      ...changes,
    };
  }

  async function placed(options: TableOptions, changes: Partial<PlaceSurroundings> = {}) {
    const pack = await FakePackage.of([{ name: "default", more: NEEDS }]);
    return tablePlace(AT, undefined, { fetch: pack.fetch, ...options }, around(changes));
  }

  it("reads what the package needs from its provenance", async () => {
    expect(await placed({ memoryBytes: 4 * GIB })).toEqual({
      place: "host",
      why: "with the table the model takes 6 GiB, and 4 GiB are allowed",
      savedBytes: 2 * GIB,
    });
    expect((await placed({ memoryBytes: 7 * GIB })).place).toBe("device");
    const old = await FakePackage.of([{ name: "default" }]);
    expect(await placed({ fetch: old.fetch, place: "host" })).toMatchObject({ place: "device", savedBytes: 0 });
  });

  it("asks for no file where the needs are given", async () => {
    const never = () => Promise.reject(new Error("asked"));
    const needs = { neededBytes: 3 * GIB, savedBytes: GIB };
    expect((await placed({ needs, fetch: never, memoryBytes: GIB })).place).toBe("host");
  });

  it("chooses by what was measured on this device with this package, for a month", async () => {
    const { store } = around();
    const kept = async (agent: string) =>
      (await KeptPace.open("https://example.org/model/", DEVICE, agent, store))!.write(
        { stepMs: 100, aloneMs: 102 },
        1000,
      );
    expect((await placed({}, { store })).place).toBe("device");
    await kept("another browser");
    expect((await placed({}, { store })).place).toBe("device");
    await kept(AGENT);
    expect((await placed({}, { store })).place).toBe("host");
    expect((await placed({ drafts: true }, { store })).place).toBe("device");
    expect((await placed({}, { store, now: () => 1000 + 31 * 24 * 3600 * 1000 })).place).toBe("device");
    expect((await placed({}, { store, now: () => 999 })).place).toBe("device");
  });

  it.each<[string, Partial<PlaceSurroundings>, RegExp]>([
    ["no storage", { storage: undefined }, /no file system/],
    ["no such files", { storage: {} }, /no file system/],
    [
      "a private window",
      { storage: { getDirectory: () => Promise.reject(new DOMException("Security error", "SecurityError")) } },
      /refuses the file system of the origin's own: Security error/,
    ],
  ])("leaves it on the device, and says why: %s", async (_, changes, why) => {
    for (const options of [{ place: "host" } as const, { memoryBytes: 1 }]) {
      const found = await placed(options, changes);
      expect(found.place).toBe("device");
      expect(found.why).toMatch(why);
    }
  });

  it("does without an adapter and a store", async () => {
    const found = await placed({}, { gpu: undefined, store: undefined });
    expect(found.place).toBe("device");
  });
});
