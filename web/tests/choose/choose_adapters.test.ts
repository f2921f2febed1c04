// Adapters as browsers and devices have them, and the library that each of them gets.
import { describe, expect, it } from "vitest";
import { choose, type Surroundings } from "../../src/choose/choose";
import { SUBGROUP_MATRICES } from "../../src/choose/fits";
import { FakeBrowser, FakePackage, SET, type FakeHardware } from "../fake_choice";

const AT = "https://example.org/model/resolve/main/";
const PACKED = ["packed_4x8_integer_dot_product"];
const F16 = ["shader-f16"];
const SUBGROUPS = [...F16, "subgroups"];
const SIZED = [...SUBGROUPS, "subgroup-size-control"];

async function name(hardware: FakeHardware, fast = false, change: (around: Surroundings) => Surroundings = (a) => a) {
  const pack = await FakePackage.of();
  const { around } = new FakeBrowser(hardware);
  return (await choose(AT, undefined, { fetch: pack.fetch, measure: false, fast }, change(around))).name;
}

describe("subgroups of", () => {
  it.each<[string, [number, number], string, string]>([
    ["Apple", [32, 32], "subgroups", "subgroups"],
    ["NVIDIA", [32, 32], "subgroups", "subgroups"],
    ["AMD with two sizes", [32, 64], "subgroups", "subgroups"],
    ["older AMD", [64, 64], "subgroups", "subgroups"],
    ["Adreno", [64, 128], "subgroups", "subgroups"],
    ["Mali", [16, 16], "subgroups-16", "subgroups-16"],
    ["Intel", [8, 32], "subgroups-8", "subgroups"],
    ["older Intel", [8, 16], "subgroups-8", "subgroups-16"],
    ["a device in software", [4, 4], "subgroups-4", "subgroups-4"],
    ["a browser that tells the least and the most there may be", [4, 128], "subgroups-4", "subgroups"],
    ["a device of one thread", [1, 1], "f16", "f16"],
  ])("%s: %o", async (_, subgroups, plain, sized) => {
    expect(await name({ features: SUBGROUPS, subgroups })).toBe(plain);
    expect(await name({ features: SIZED, subgroups }, true)).toBe(sized);
  });

  it.each<[string, object]>([
    ["nobody tells (Safari, older Chrome)", {}],
    ["0", { subgroupMinSize: 0, subgroupMaxSize: 0 }],
  ])("a size that is %s may be the least there is", async (_, info) => {
    expect(await name({ features: SUBGROUPS, languageFeatures: PACKED, info })).toBe("subgroups-4");
    expect(await name({ features: SIZED, info }, true)).toBe("subgroups-4");
  });
});

describe("a package with a library of subgroup matrices", () => {
  const MATRICES = [...SUBGROUPS, SUBGROUP_MATRICES];
  const CONFIG = { componentType: "f16", resultComponentType: "f32", M: 16, N: 16, K: 16 };
  const OTHERS = [
    { ...CONFIG, M: 8, N: 8, K: 8 },
    { ...CONFIG, resultComponentType: "f16" },
  ];
  const LIBRARIES = [
    ...SET,
    { name: "h200-matrices", features: MATRICES, language_features: PACKED, subgroup_size: 32, activations: "int8" },
  ];

  async function chosen(hardware: FakeHardware, { fast = true, measure = false } = {}) {
    const pack = await FakePackage.of(LIBRARIES);
    const { around } = new FakeBrowser({ languageFeatures: PACKED, subgroups: [32, 32], ...hardware });
    return choose(AT, undefined, { fetch: pack.fetch, measure, fast }, around);
  }
  const info = (subgroupMatrixConfigs: object[], most = 32) => ({
    subgroupMinSize: 32,
    subgroupMaxSize: most,
    subgroupMatrixConfigs,
  });

  it.each<[string, FakeHardware, boolean, string]>([
    ["offered with the right matrices", { features: MATRICES, info: info([...OTHERS, CONFIG]) }, true, "h200-matrices"],
    ["offered, and nobody tells which", { features: MATRICES }, true, "h200-matrices"],
    ["offered, and the client alone does not ask", { features: MATRICES, info: info([CONFIG]) }, false, "h200"],
    ["not offered", { features: SUBGROUPS }, true, "h200"],
    ["offered with other matrices", { features: MATRICES, info: info(OTHERS) }, true, "h200"],
    ["offered with subgroups that may be larger", { features: MATRICES, info: info([CONFIG], 64) }, true, "h200"],
    [
      "offered with a size that can be set",
      { features: [...MATRICES, "subgroup-size-control"], info: info([CONFIG], 64) },
      true,
      "h200-matrices",
    ],
    ["offered without int8 products", { features: MATRICES, languageFeatures: [] }, true, "subgroups"],
    ["offered with small subgroups", { features: MATRICES, subgroups: [8, 8] }, true, "subgroups-8"],
  ])("takes the best one that runs where they are %s", async (_, hardware, fast, expected) => {
    expect((await chosen(hardware, { fast })).name).toBe(expected);
  });

  it("takes it of two that decode alike, and the next one where it is wrong or its kernels are not made", async () => {
    const speed = { "h200-matrices": 51, h200: 50, subgroups: 90, int8: 99 };
    const right = await chosen({ features: MATRICES, speed }, { measure: true });
    expect(right.name).toBe("h200-matrices");
    expect(right.required_features).toContain(SUBGROUP_MATRICES);
    for (const fault of [
      { wrong: { "h200-matrices": ["prompt_kernel"] } },
      { wrong: { "h200-matrices": ["decode_kernel"] } },
      { refuses: { "h200-matrices": "no such matrices" } },
    ])
      expect((await chosen({ features: MATRICES, speed, ...fault }, { measure: true })).name).toBe("h200");
  });
});

describe("an adapter", () => {
  it("has its limits in getters, and its features in a set that is none of JavaScript's", async () => {
    const { adapter } = new FakeBrowser({ features: SUBGROUPS, subgroups: [32, 32] });
    class Limits {}
    for (const [limit, value] of Object.entries(adapter.limits))
      Object.defineProperty(Limits.prototype, limit, { get: () => value });
    const features = { has: (each: string) => SUBGROUPS.includes(each), [Symbol.iterator]: () => SUBGROUPS.values() };
    const like = { ...adapter, features, limits: new Limits() } as unknown as GPUAdapter;
    const { around } = new FakeBrowser({});
    const { fetch } = await FakePackage.of();
    expect((await choose(AT, like, { fetch, measure: false }, around)).name).toBe("subgroups");
  });

  it("without `info` (older browsers) and without language features is judged by the rest", async () => {
    const { adapter, around } = new FakeBrowser({ features: SUBGROUPS, speed: { f16: 1 } });
    const { info: _, ...bare } = adapter;
    const gpu = { requestAdapter: async () => ({ ...bare, features: adapter.features }) };
    const { fetch } = await FakePackage.of();
    const without = { ...around, gpu: gpu as unknown as Surroundings["gpu"] };
    const { name: found, measured } = await choose(AT, undefined, { fetch }, without);
    expect(found).toBe("f16");
    expect(measured.map((each) => each.name)).toEqual(["subgroups-4", "f16", "default"]);
  });

  it.each<[string, Record<string, number>, RegExp]>([
    [
      "too few storage buffers",
      { maxStorageBuffersPerShaderStage: 8 },
      /maxStorageBuffersPerShaderStage of 10 \(here 8\)/,
    ],
    ["small buffers", { maxBufferSize: 2 ** 27 }, /maxBufferSize of 268435456 \(here 134217728\)/],
    ["small bindings", { maxStorageBufferBindingSize: 2 ** 26 }, /maxStorageBufferBindingSize of 134217728/],
    ["little shared memory", { maxComputeWorkgroupStorageSize: 16384 }, /maxComputeWorkgroupStorageSize of 32768/],
    ["small workgroups", { maxComputeInvocationsPerWorkgroup: 128 }, /maxComputeInvocationsPerWorkgroup of 256/],
    ["a limit that is no number", { maxBufferSize: Number.NaN }, /maxBufferSize of 268435456/],
  ])("with %s gets an error that names it", async (_, limits, words) => {
    await expect(name({ features: SUBGROUPS, limits })).rejects.toThrow(words);
  });

  it("that is none is an error in words, whether null, refused or without WebGPU", async () => {
    const around = (gpu: unknown) => (all: Surroundings) => ({ ...all, gpu: gpu as Surroundings["gpu"] });
    const none = { requestAdapter: async () => null };
    const refused = { requestAdapter: async () => Promise.reject(new TypeError("no")) };
    for (const gpu of [undefined, none, refused])
      await expect(name({}, false, around(gpu))).rejects.toThrow("WebGPU found no graphics device");
  });

  it("whose device is refused, is lost at once, or never comes gets the expected library", async () => {
    const pack = await FakePackage.of();
    const desktop = { features: SUBGROUPS, languageFeatures: PACKED, subgroups: [32, 32] as [number, number] };
    const opening = async (requestDevice: (real: () => Promise<GPUDevice>) => Promise<GPUDevice>) => {
      const { adapter, around } = new FakeBrowser(desktop);
      const real = adapter.requestDevice.bind(adapter);
      const own = Object.assign(adapter, { requestDevice: (d: GPUDeviceDescriptor) => requestDevice(() => real(d)) });
      const gpu = { ...around.gpu!, requestAdapter: async () => own } as unknown as Surroundings["gpu"];
      return choose(AT, undefined, { fetch: pack.fetch }, { ...around, gpu, now: () => performance.now() });
    };
    const refused = await opening(() => Promise.reject(new DOMException("no", "OperationError")));
    expect([refused.name, refused.why]).toEqual(["h200", expect.stringContaining("could not be opened")]);
    const thrown = await opening(() => {
      throw new TypeError("no");
    });
    expect([thrown.name, thrown.why]).toEqual(["h200", expect.stringContaining("could not be opened")]);
    const late = await opening(() => new Promise(() => undefined));
    expect([late.name, late.why]).toEqual(["h200", expect.stringContaining("could not be opened")]);
    const lost = await opening(async (real) => {
      const device = await real();
      const gone = async () => Promise.reject(new Error("the device is lost"));
      return Object.assign(device, { lost: Promise.resolve({}), createComputePipelineAsync: gone });
    });
    expect(lost.measured.map(({ problem }) => problem)).toEqual(["the device was lost"]);
    expect(lost.name).toBe("default");
  });
});

describe("a package of libraries of other names", () => {
  it("is judged by what they need, whatever they are called", async () => {
    const needs = SET.filter(({ name: each }) => ["default", "f16", "h200"].includes(each));
    const strange = needs.map((each, index) => ({
      ...each,
      name: `my.own-${index}`,
      float16: "bf16",
      activations: "int4",
    }));
    const pack = await FakePackage.of(strange);
    const of = async (hardware: FakeHardware) => {
      const { around } = new FakeBrowser(hardware);
      return (await choose(AT, undefined, { fetch: pack.fetch, measure: false }, around)).name;
    };
    expect(await of({})).toBe("my.own-0");
    expect(await of({ features: F16 })).toMatch(/^my\.own-[01]$/);
    expect(await of({ features: SUBGROUPS, languageFeatures: PACKED, subgroups: [32, 32] })).toBe("my.own-2");
  });

  it("leaves aside what nobody knows yet, and takes no library whose needs nobody can read", async () => {
    const more = { max_workgroups: 7, note: "tomorrow's" };
    const pack = await FakePackage.of([{ name: "default", more }]);
    const { around } = new FakeBrowser({});
    expect((await choose(AT, undefined, { fetch: pack.fetch }, around)).name).toBe("default");
    const future = await FakePackage.of([{ name: "default" }, { name: "cooperative", features: ["subgroup-matrix"] }]);
    expect((await choose(AT, undefined, { fetch: future.fetch }, around)).name).toBe("default");
    const without = await FakePackage.of(SET, (provenance) => {
      for (const library of provenance["libraries"] as Record<string, unknown>[]) delete library["requirements"];
    });
    await expect(choose(AT, undefined, { fetch: without.fetch }, around)).rejects.toThrow(
      "`default.requirements` should be",
    );
  });
});
