import { describe, expect, it } from "vitest";
import { choose } from "../../src/choose/choose";
import type { ChooseOptions } from "../../src/choose";
import { readLibraries } from "../../src/choose/provenance";
import { counts } from "../../src/stats";
import { FakeBrowser, FakePackage, SET, type FakeHardware } from "../fake_choice";

const AT = "https://example.org/model/resolve/main/";
const PACKED = ["packed_4x8_integer_dot_product"];
const F16 = ["shader-f16"];
const SUBGROUPS = ["shader-f16", "subgroups"];
const MIB = 2 ** 20;
/** Everything that a desktop has. */
const DESKTOP: FakeHardware = { features: SUBGROUPS, languageFeatures: PACKED, subgroups: [32, 32] };

async function chosen(hardware: FakeHardware, options: ChooseOptions = {}, pack?: FakePackage) {
  const browser = new FakeBrowser(hardware);
  const from = pack ?? (await FakePackage.of());
  const choice = await choose(AT, undefined, { fetch: from.fetch, ...options }, browser.around);
  return { ...choice, browser, pack: from };
}

describe("of the libraries that fit, the one expected to be the fastest", () => {
  it.each<[string, string, FakeHardware]>([
    ["a device without any feature", "default", {}],
    ["Safari 26: 16-bit floats alone", "f16", { features: F16 }],
    ["16-bit floats and packed products", "int8", { features: F16, languageFeatures: PACKED }],
    ["Safari 27.3: subgroups, no packed products", "subgroups", { features: SUBGROUPS, subgroups: [32, 32] }],
    ["subgroups of 64", "subgroups", { features: SUBGROUPS, subgroups: [64, 64] }],
    ["a phone with subgroups from 16", "subgroups-16", { features: SUBGROUPS, subgroups: [16, 128] }],
    ["Intel: subgroups from 8", "subgroups-8", { features: SUBGROUPS, subgroups: [8, 32] }],
    ["a software device: subgroups of 4", "subgroups-4", { features: SUBGROUPS, subgroups: [4, 4] }],
    ["a browser that does not say how large subgroups are", "subgroups-4", { features: SUBGROUPS }],
    ["a desktop's", "h200", DESKTOP],
    ["NVIDIA on Linux: no 16-bit floats", "h200-f32", { ...DESKTOP, features: ["subgroups"] }],
    ["packed products alone", "default", { languageFeatures: PACKED }],
  ])("%s: %s", async (_, name, hardware) => {
    const { name: found, required_features, model_lib } = await chosen(hardware, { measure: false });
    expect(found).toBe(name);
    const needs = SET.find((each) => each.name === name)!;
    expect(required_features).toEqual(needs.features ?? []);
    expect(model_lib).toBe(AT + (name === "default" ? "model.wasm" : `model-${name}.wasm`));
  });

  it("takes subgroups of a size that may be set, where gemma4-web sets it", async () => {
    const hardware = {
      ...DESKTOP,
      features: [...SUBGROUPS, "subgroup-size-control"],
      subgroups: [8, 32] as [number, number],
    };
    expect((await chosen(hardware, { measure: false, fast: true })).name).toBe("h200");
    expect((await chosen(hardware, { measure: false, fast: false })).name).toBe("subgroups-8");
    const far = { ...hardware, subgroups: [8, 16] as [number, number] };
    expect((await chosen(far, { measure: false, fast: true })).name).toBe("subgroups-16");
  });

  it("asks no more of a limit than the client does", async () => {
    const large = [{ name: "default" }, { name: "large", more: { max_binding_bytes: 512 * MIB } }];
    const of = async (maxStorageBufferBindingSize: number) => {
      const pack = await FakePackage.of(large);
      return (await chosen({ limits: { maxStorageBufferBindingSize } }, { measure: false }, pack)).why;
    };
    expect(await of(1024 * MIB)).toContain("expected");
    expect(await of(1000 * MIB)).toBe("the only one of 2 that fits"); // the client gets 128 MiB
    const threads = await FakePackage.of([{ name: "default" }, { name: "wide", more: { max_threads_per_block: 512 } }]);
    const limits = { maxComputeInvocationsPerWorkgroup: 511 };
    expect((await chosen({ limits }, { measure: false }, threads)).why).toBe("the only one of 2 that fits");
  });

  it("says of each what is missing where none fits", async () => {
    const pack = await FakePackage.of(SET.filter(({ name }) => ["f16", "h200"].includes(name)));
    const wrong = chosen({ features: ["subgroups"], subgroups: [8, 8] }, {}, pack);
    await expect(wrong).rejects.toThrow(
      "f16 needs the feature shader-f16; h200 needs the feature shader-f16, the WGSL language feature " +
        "packed_4x8_integer_dot_product, subgroups of 32 threads or more (here they may have 8)",
    );
    const small = chosen({ limits: { maxStorageBuffersPerShaderStage: 8 } });
    await expect(small).rejects.toThrow("maxStorageBuffersPerShaderStage of 10 (here 8)");
  });

  it("does not take a feature that nobody asks the device for", async () => {
    const pack = await FakePackage.of([{ name: "default" }, { name: "odd", features: ["bgra8unorm-storage"] }]);
    expect((await chosen({ features: ["bgra8unorm-storage"] }, {}, pack)).name).toBe("default");
  });
});

describe("of several that fit, the fastest right one", () => {
  it.each([true, false])("is measured (the device's clock: %s)", async (hasClock) => {
    const speed = { h200: 90, subgroups: 40, int8: 80, f16: 60 };
    const { name, why, measured, browser } = await chosen({ ...DESKTOP, speed, hasClock });
    expect(name).toBe("subgroups");
    expect(measured.map((each) => each.name)).toEqual(["h200", "subgroups", "int8", "f16"]);
    expect(measured.map(({ microseconds }) => Math.round(microseconds!))).toEqual([270, 120, 240, 180]);
    expect(why).toBe("the fastest here: 120 us (h200 270 us, int8 240 us, f16 180 us)");
    expect(browser.live).toBe(0);
    expect([counts.library, counts.libraryReason]).toEqual([name, why]);
  });

  it("is measured on a device as the client opens it", async () => {
    const { browser } = await chosen({
      ...DESKTOP,
      limits: { maxStorageBufferBindingSize: 900 * MIB },
      hasClock: true,
    });
    const [{ requiredFeatures, requiredLimits }] = browser.opened as [GPUDeviceDescriptor];
    expect(requiredFeatures).toEqual([...SUBGROUPS, "timestamp-query"]);
    expect(requiredLimits).toMatchObject({
      maxStorageBufferBindingSize: 128 * MIB,
      maxBufferSize: 1024 * MIB,
      maxComputeInvocationsPerWorkgroup: 1024,
    });
  });

  it.each([
    ["a token's matmul", ["decode_kernel"]],
    ["a prompt's matmul, which is not timed", ["prompt_kernel"]],
  ])("is never one whose answers are wrong: %s", async (_, kernels) => {
    const { name, measured } = await chosen({ ...DESKTOP, speed: { h200: 1 }, wrong: { h200: kernels } });
    expect(name).not.toBe("h200");
    expect(measured[0]).toMatchObject({ name: "h200", problem: expect.stringContaining("computes wrong results") });
    expect(measured[0]).not.toHaveProperty("microseconds");
  });

  it("may be one of smaller subgroups where the larger ones are wrong", async () => {
    const pack = await FakePackage.of(SET.filter(({ name }) => name.startsWith("subgroups")));
    const wrong = { subgroups: ["attend_kernel"], "subgroups-16": ["decode_kernel"] };
    expect((await chosen({ ...DESKTOP, wrong }, {}, pack)).name).toBe("subgroups-8");
  });

  it("is none where all are wrong", async () => {
    const wrong = Object.fromEntries(SET.map(({ name }) => [name, ["decode_kernel"]]));
    const browser = new FakeBrowser({ ...DESKTOP, wrong });
    const pack = await FakePackage.of();
    const choice = choose(AT, undefined, { fetch: pack.fetch }, browser.around);
    await expect(choice).rejects.toThrow("No library of the package computes right results here (h200: maker arch");
    await expect(choice).rejects.toThrow("Update the graphics driver and the browser");
    expect(browser.live).toBe(0);
  });

  it("is the best so far when 400 ms are over", async () => {
    const speed = { h200: 90, subgroups: 200, int8: 1 };
    const { name, measured } = await chosen({ ...DESKTOP, compileMs: 150, speed });
    // Two pipelines of a library take 300 ms: nothing begins after the second one's.
    expect(measured.map((each) => each.name)).toEqual(["h200", "subgroups"]);
    expect(name).toBe("h200");
  });

  it("waits no longer for a library whose kernels never get ready", async () => {
    const browser = new FakeBrowser({ ...DESKTOP, hangs: "subgroups" });
    const around = { ...browser.around, now: () => performance.now() };
    const pack = await FakePackage.of();
    const { name, measured } = await choose(AT, undefined, { fetch: pack.fetch }, around);
    expect(measured.map((each) => each.name)).toEqual(["h200", "subgroups"]);
    expect(measured[1]!.problem).toContain("no time left");
    expect([name, browser.live]).toEqual(["h200", 0]);
  });

  it("is the expected one where time is up before anything is known, and is not kept for long", async () => {
    const hardware = { ...DESKTOP, compileMs: 0 };
    const browser = new FakeBrowser(hardware);
    const around = { ...browser.around, now: () => (browser.milliseconds += 300) };
    const pack = await FakePackage.of();
    const { name, why, measured } = await choose(AT, undefined, { fetch: pack.fetch }, around);
    expect([name, measured]).toEqual(["h200", []]);
    expect(why).toContain("expected to be the fastest");
    const [kept] = [...browser.kept].flatMap(([key, text]) =>
      key.includes("choices.invalid") ? [JSON.parse(text)] : [],
    );
    expect(kept).toMatchObject({ name: "h200", isMeasured: false });
  });

  it("is the expected one where the device does not open, or a file is another than the package names", async () => {
    expect((await chosen({ ...DESKTOP, opens: false })).why).toContain("could not be opened");
    const pack = await FakePackage.of();
    for (const file of [...pack.files.keys()].filter((each) => each.endsWith(".wasm"))) {
      const data = pack.files.get(file)!.slice();
      data[0]! ^= 1;
      pack.files.set(file, data);
    }
    const { name, measured } = await chosen(DESKTOP, {}, pack);
    expect(name).toBe("h200");
    expect(measured.every(({ problem }) => problem === "its file did not come")).toBe(true);
  });
});

describe("a choice", () => {
  it("is kept, and made again for another package, device or browser", async () => {
    const pack = await FakePackage.of();
    const browser = new FakeBrowser({ ...DESKTOP, speed: { int8: 1 } });
    const again = (around = browser.around, from = pack) => choose(AT, undefined, { fetch: from.fetch }, around);
    const first = await again();
    expect(first.name).toBe("int8");
    expect(pack.asked.length).toBeGreaterThan(1);
    pack.asked.length = 0;
    const second = await again();
    expect([second.name, second.why, second.measured]).toEqual([first.name, first.why, []]);
    expect(pack.asked).toEqual(["provenance.json"]);
    expect(browser.opened).toHaveLength(1);
    await again({ ...browser.around, userAgent: "Fake/2" });
    expect(browser.opened).toHaveLength(2);
    const changed = await FakePackage.of(SET.slice(0, -1));
    await again(browser.around, changed);
    expect(browser.opened).toHaveLength(3);
    const other = new FakeBrowser({ ...DESKTOP, info: { vendor: "another" } });
    await again({ ...other.around, store: browser.around.store });
    expect(other.opened).toHaveLength(1);
  });

  it("is made without a network from what was kept", async () => {
    const pack = await FakePackage.of();
    const browser = new FakeBrowser(DESKTOP);
    const again = () => choose(AT, undefined, { fetch: pack.fetch }, browser.around);
    const { name } = await again();
    pack.isReachable = false;
    expect((await again()).name).toBe(name);
    const never = choose("https://example.org/never/", undefined, { fetch: pack.fetch }, browser.around);
    await expect(never).rejects.toThrow("cannot be reached");
  });

  it("is the expected one where the network goes after the list has come", async () => {
    const pack = await FakePackage.of();
    const get = (url: string) =>
      url.endsWith(".wasm") ? Promise.reject(new TypeError("no network")) : pack.fetch(url);
    const { around } = new FakeBrowser(DESKTOP);
    expect((await choose(AT, undefined, { fetch: get }, around)).name).toBe("h200");
  });

  it("works where nothing can be kept", async () => {
    const pack = await FakePackage.of();
    const around = { ...new FakeBrowser(DESKTOP).around, store: undefined };
    expect((await choose(AT, undefined, { fetch: pack.fetch }, around)).name).toBe("h200");
  });

  it("is fixed by name, whatever the device", async () => {
    const { name, why, browser } = await chosen({}, { library: "h200" });
    expect([name, why, browser.opened]).toEqual(["h200", "it was asked for by name", []]);
    await expect(chosen({}, { library: "metal" })).rejects.toThrow(
      "no library `metal` for browsers: it has default, f16",
    );
  });

  it("judges the adapter that it is given", async () => {
    const pack = await FakePackage.of();
    const { adapter } = new FakeBrowser({ features: F16 });
    const browser = new FakeBrowser({ ...DESKTOP, languageFeatures: [] });
    const { name } = await choose(AT, adapter, { fetch: pack.fetch, measure: false }, browser.around);
    expect(name).toBe("f16");
  });

  it("looks below the client's folder", async () => {
    const pack = await FakePackage.of();
    const { around } = new FakeBrowser({});
    const { model_lib } = await choose("https://example.org/model", undefined, { fetch: pack.fetch }, around);
    expect(model_lib).toBe("https://example.org/model/resolve/main/model.wasm");
  });
});

describe("a package's list", () => {
  const text = async (change: (provenance: Record<string, unknown>) => void) =>
    new TextDecoder().decode((await FakePackage.of(SET, change)).files.get("provenance.json"));

  it("has one library where there is none", async () => {
    const [only, ...rest] = readLibraries(
      await text((provenance) => {
        delete provenance["libraries"];
        const requirements = { features: ["shader-f16", "subgroups"], subgroup_size: 32 };
        provenance["build"] = { target: "webgpu", limits: "subgroups", activations: "int8", requirements };
      }),
    );
    expect(rest).toEqual([]);
    expect(only).toMatchObject({
      file: "model.wasm",
      name: "subgroups",
      activations: "int8",
      needs: { subgroupSize: 32 },
    });
  });

  it("leaves out what is not for browsers", async () => {
    const native = { file: "model.wasm", name: "cuda", target: "cuda" };
    const all = await text((provenance) => (provenance["libraries"] as object[]).push(native));
    expect(readLibraries(all).map(({ name }) => name)).toEqual(SET.map(({ name }) => name));
    const none = await text((provenance) => (provenance["libraries"] = [native]));
    expect(() => readLibraries(none)).toThrow("--target webgpu");
  });

  it.each<[string, (libraries: Record<string, unknown>[], provenance: Record<string, unknown>) => void, string]>([
    ["another schema", (_, p) => (p["schema"] = "x"), "`schema` should be gemma4_compile.package 1"],
    ["no files", (_, p) => delete p["files"], "`files` should be an object"],
    ["a list that is none", (_, p) => (p["libraries"] = {}), "`libraries` should be a list"],
    ["an empty list", (_, p) => (p["libraries"] = []), "`libraries` should be a list"],
    ["too many", (l) => l.push(...Array.from({ length: 60 }, () => l[0]!)), "a list of 1 to 64"],
    ["a path", (l) => (l[0]!["file"] = "../model.wasm"), "`libraries[0].file` should be a plain file name"],
    ["a file that is not the package's", (l) => (l[0]!["file"] = "other.wasm"), "one of `files`"],
    ["a name twice", (l) => (l[1]!["name"] = "default"), "different names"],
    ["a name with markup", (l) => (l[1]!["name"] = "<b>"), "`libraries.name` should be"],
    ["a size that is none", (l) => (l[0]!["requirements"] = { subgroup_size: -1 }), "default.subgroup_size"],
    [
      "features that are none",
      (l) => (l[0]!["requirements"] = { features: "f16" }),
      "`default.features` should be a list",
    ],
  ])("with %s is refused", async (_, change, message) => {
    const found = await text((provenance) => change(provenance["libraries"] as Record<string, unknown>[], provenance));
    expect(() => readLibraries(found)).toThrow(message);
  });

  it("that is no JSON is refused, and so is an endless one", async () => {
    expect(() => readLibraries("<html>")).toThrow("should be JSON");
    const pack = await FakePackage.of();
    pack.files.set("provenance.json", new Uint8Array((1 << 24) + 1));
    await expect(chosen({}, {}, pack)).rejects.toThrow("larger than");
    pack.files.delete("provenance.json");
    await expect(chosen({}, {}, pack)).rejects.toThrow("answers 404");
  });
});
