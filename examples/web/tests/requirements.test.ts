import { describe, expect, it } from "vitest";
import { RateMeter } from "../src/download/rate";
import type { Package } from "../src/package/package";
import { CLIENT_LIMITS, SUBGROUP_MATRICES } from "gemma4-web/choose";
import { contextLengths, judge, neededMemory, type Device } from "../src/package/requirements";
import { formatBytes, formatSeconds, formatShort, GIB, MIB } from "../src/package/units";

const PACK = {
  recipe: "q4f16",
  libraries: [] as Package["libraries"],
  contextLength: 4096,
  requirements: {
    features: ["shader-f16"],
    subgroupSize: 0,
    maxBindingBytes: 100 * MIB,
    weightsBytes: 2 * GIB,
    kvSlidingBytes: 100 * MIB,
    kvFullBytes: 400 * MIB,
    activationBytes: 100 * MIB,
  },
} as Package;
const DEVICE: Device = {
  name: "Test",
  features: new Set(["shader-f16"]),
  isSoftware: false,
  languageFeatures: new Set(),
  subgroupMinSize: 8,
  subgroupMaxSize: 8,
  isDriven: true,
  matrixConfigs: [],
  limits: { ...CLIENT_LIMITS },
  memoryBytes: 16 * GIB,
  freeStorageBytes: 10 * GIB,
};

const SMALL = {
  features: [],
  languageFeatures: [],
  subgroupSize: 0,
  maxBindingBytes: 0,
  maxThreadsPerBlock: 0,
  maxSharedBytes: 0,
  maxStorageBuffers: 0,
};

function blocks(pack: Package, device: Device, context = 4096, allowed = 0, missing = GIB) {
  return judge(pack, device, context, allowed, missing).filter((finding) => finding.kind !== "fits");
}

describe("judge", () => {
  it("finds nothing wrong where all fits", () => expect(blocks(PACK, DEVICE)).toEqual([]));

  it("says where there is room for a download, but not for per-layer embeddings beside it", () => {
    const table = { place: "host", why: "", savedBytes: GIB, wish: "auto" } as const;
    const free = (bytes: number) => ({ ...DEVICE, freeStorageBytes: bytes });
    const [finding] = blocks({ ...PACK, table }, free(2 * GIB - 1));
    expect(finding).toMatchObject({ kind: "risk", text: expect.stringMatching(/1\.00 GiB of the browser's storage/) });
    expect(blocks({ ...PACK, table }, free(2 * GIB))).toEqual([]);
    expect(blocks({ ...PACK, table }, free(GIB - 1))[0]?.kind).toBe("blocks");
    expect(blocks({ ...PACK, table: { ...table, place: "device" } }, free(GIB))).toEqual([]);
    expect(blocks({ ...PACK, table }, free(0), 4096, 0, 0)).toEqual([]);
  });

  it("counts the memory of the page's other model", () => {
    const memory = { ...DEVICE, memoryBytes: 0 };
    const needed = neededMemory(PACK, 4096);
    const found = (beside: number, allowed: number) => judge(PACK, memory, 4096, allowed, GIB, beside);
    const words = `(${formatBytes(GIB)} of them for the page's other model)`;
    expect(found(GIB, needed + GIB).every(({ kind }) => kind === "fits")).toBe(true);
    expect(found(GIB, needed + GIB).some(({ text }) => text.includes(words))).toBe(true);
    const [short] = found(GIB, needed + GIB - MIB).filter(({ kind }) => kind === "blocks");
    expect(short).toMatchObject({ text: expect.stringContaining(words), hint: "Choose a context of 2,048 tokens." });
    expect(found(0, needed).some(({ text }) => text.includes("other model"))).toBe(false);
  });

  it("warns of what a phone that tells nothing of its memory may end, and lets the person try", () => {
    const phone = { ...DEVICE, memoryBytes: 0, isMobile: true };
    const [finding] = blocks(PACK, phone);
    expect(finding).toMatchObject({ kind: "risk", isMemory: true, text: expect.stringMatching(/more than 1\.40 GiB/) });
    expect(blocks(PACK, phone, 4096, 4 * GIB)).toEqual([]);
    expect(blocks(PACK, { ...phone, isMobile: false })).toEqual([]);
    expect(blocks(PACK, { ...phone, memoryBytes: 8 * GIB })).toEqual([]);
    const small = { ...PACK, requirements: { ...PACK.requirements, weightsBytes: GIB / 2 } };
    expect(blocks(small, phone)).toEqual([]);
  });

  it("says that prompts differ from the model's template", () => {
    const [finding] = blocks({ ...PACK, difference: "two turns" }, DEVICE);
    expect(finding).toMatchObject({ kind: "risk", text: expect.stringContaining("(two turns)") });
  });

  it("says where a device is none", () => {
    const texts = (device: Device) =>
      judge(PACK, device, 4096, 0, GIB)
        .map(({ text }) => text)
        .join(" ");
    expect(texts(DEVICE)).not.toContain("software");
    expect(texts({ ...DEVICE, isSoftware: true })).toContain("computes in software");
    expect(blocks(PACK, { ...DEVICE, isSoftware: true })).toEqual([]);
  });

  it("says what to compile where 16-bit floats are missing", () => {
    const [finding] = blocks(PACK, { ...DEVICE, features: new Set() });
    expect(finding?.hint).toMatch(/compile the package again without --limits/i);
  });

  it("names the libraries of the package that fit, or what each of them lacks", () => {
    const library = (name: string, features: string[]) => {
      const needs = { ...SMALL, features };
      return {
        name,
        needs,
        file: `${name}.wasm`,
        requirements: PACK.requirements,
      } as unknown as Package["libraries"][number];
    };
    const bare = { ...DEVICE, features: new Set<string>() };
    const pack = { ...PACK, library: "f16.wasm", libraries: [library("f16", ["shader-f16"]), library("default", [])] };
    expect(blocks(pack, bare)).toMatchObject([
      { kind: "blocks", hint: expect.stringContaining("Choose another library of the package: default") },
    ]);
    const none = { ...pack, libraries: [library("f16", ["shader-f16"]), library("sub", ["subgroups"])] };
    expect(blocks(none, bare)).toMatchObject([
      {
        kind: "blocks",
        text: expect.stringMatching(/None of the package's 2 libraries.*f16 needs the feature shader-f16; sub needs/),
      },
    ]);
    expect(blocks(pack, DEVICE)).toEqual([]);
  });

  it("names a language feature that the browser lacks", () => {
    const needs = { ...SMALL, languageFeatures: ["packed"] };
    const only = { name: "int8", needs, file: "int8.wasm" } as unknown as Package["libraries"][number];
    const pack = { ...PACK, library: "int8.wasm", libraries: [only] };
    expect(blocks(pack, DEVICE)).toMatchObject([{ kind: "blocks", text: expect.stringContaining("packed") }]);
    expect(blocks(pack, { ...DEVICE, languageFeatures: new Set(["packed"]) })).toEqual([]);
  });

  it("lets gemma4-web set the size of subgroups", () => {
    const pack = { ...PACK, requirements: { ...PACK.requirements, subgroupSize: 32 } };
    const features = new Set(["shader-f16", "subgroups", "subgroup-size-control"]);
    const device = { ...DEVICE, features, subgroupMaxSize: 32 };
    expect(blocks(pack, device)).toEqual([]);
    expect(blocks(pack, { ...device, isDriven: false })).toMatchObject([{ kind: "blocks" }]);
  });

  it("says how an experiment of Chrome's is switched on", () => {
    const features = ["shader-f16", SUBGROUP_MATRICES];
    const pack = { ...PACK, requirements: { ...PACK.requirements, features, subgroupSize: 8 } };
    const [finding, ...others] = blocks(pack, DEVICE);
    expect(finding).toMatchObject({ kind: "blocks", text: expect.stringContaining(SUBGROUP_MATRICES) });
    expect(finding?.hint).toMatch(/Unsafe WebGPU Support.*without --limits/);
    expect(others).toEqual([]);
    expect(blocks(pack, { ...DEVICE, features: new Set(features) })).toEqual([]);
  });

  it("refuses subgroup matrices of other sizes or types than the kernels'", () => {
    const features = ["shader-f16", SUBGROUP_MATRICES];
    const pack = { ...PACK, requirements: { ...PACK.requirements, features, subgroupSize: 8 } };
    const device = { ...DEVICE, features: new Set(features) };
    const config = { componentType: "f16", resultComponentType: "f32", M: 16, N: 16, K: 16 };
    const others = [
      { ...config, M: 8, N: 8, K: 8 },
      { ...config, resultComponentType: "f16" },
    ];
    expect(blocks(pack, { ...device, matrixConfigs: [...others, config] })).toEqual([]);
    expect(blocks(pack, { ...device, matrixConfigs: others })).toMatchObject([
      { kind: "blocks", text: expect.stringContaining("16 x 16"), hint: expect.stringContaining("without --limits") },
    ]);
    expect(blocks(PACK, { ...device, matrixConfigs: others })).toEqual([]);
  });

  it("refuses subgroup matrices where subgroups may be larger, unless their size is set", () => {
    const features = ["shader-f16", "subgroups", SUBGROUP_MATRICES];
    const pack = { ...PACK, requirements: { ...PACK.requirements, features, subgroupSize: 32 } };
    const device = { ...DEVICE, features: new Set(features), subgroupMinSize: 32, subgroupMaxSize: 64 };
    expect(blocks(pack, device)).toMatchObject([
      { kind: "blocks", text: expect.stringMatching(/exactly 32.*have 64/) },
    ]);
    expect(blocks(pack, { ...device, subgroupMaxSize: 32 })).toEqual([]);
    expect(blocks(pack, { ...device, features: new Set([...features, "subgroup-size-control"]) })).toEqual([]);
  });

  it("refuses subgroups that are too small, and warns of unknown ones", () => {
    const pack = { ...PACK, requirements: { ...PACK.requirements, subgroupSize: 32 } };
    expect(blocks(pack, DEVICE)).toMatchObject([{ kind: "blocks", text: expect.stringMatching(/32 threads.*have 8/) }]);
    expect(blocks(pack, { ...DEVICE, subgroupMinSize: 0 })).toMatchObject([{ kind: "risk" }]);
    expect(blocks(pack, { ...DEVICE, subgroupMinSize: 32 })).toEqual([]);
  });

  it("names the limit that is too small, and both numbers", () => {
    const limits = { ...DEVICE.limits, maxStorageBuffersPerShaderStage: 8 };
    expect(blocks(PACK, { ...DEVICE, limits })[0]?.text).toMatch(/maxStorageBuffersPerShaderStage is 8, and 10/);
  });

  it("knows that the client takes one of two sizes of a binding", () => {
    const pack = { ...PACK, requirements: { ...PACK.requirements, maxBindingBytes: 200 * MIB } };
    const limits = { ...DEVICE.limits, maxStorageBufferBindingSize: 512 * MIB };
    expect(blocks(pack, { ...DEVICE, limits })[0]?.text).toMatch(/binds 200 MiB at once.*128 MiB/);
    limits.maxStorageBufferBindingSize = 2 * GIB;
    expect(blocks(pack, { ...DEVICE, limits })).toEqual([]);
  });

  it("finds the longest context within what is allowed", () => {
    expect(neededMemory(PACK, 4096)).toBe(2 * GIB + 600 * MIB);
    const [finding] = blocks(PACK, DEVICE, 4096, 2 * GIB + 310 * MIB);
    expect(finding).toMatchObject({ kind: "blocks", hint: "Choose a context of 1,024 tokens." });
    expect(blocks(PACK, DEVICE, 1024, 2 * GIB + 310 * MIB)).toEqual([]);
    expect(contextLengths(PACK)).toEqual([4096, 2048, 1024, 512, 256]);
  });

  it("offers a smaller recipe or model where no context helps", () => {
    expect(blocks(PACK, DEVICE, 4096, GIB)[0]?.hint).toContain("E2B");
    expect(blocks({ ...PACK, recipe: "f32" }, DEVICE, 4096, GIB)[0]?.hint).toMatch(/q4f16.*288 MiB/);
  });

  it("warns on a small machine without forbidding", () => {
    expect(blocks(PACK, { ...DEVICE, memoryBytes: 2 * GIB })[0]?.kind).toBe("risk");
    expect(blocks(PACK, { ...DEVICE, memoryBytes: 0 })).toEqual([]);
    // A machine that reports 1 GiB has 1.5 at most; one that reports 8 may have any more.
    const [certain] = blocks(PACK, { ...DEVICE, memoryBytes: GIB });
    expect(certain).toMatchObject({ kind: "blocks", hint: expect.stringMatching(/smallest .* --fit 768MiB\.$/) });
    expect(blocks(PACK, { ...DEVICE, memoryBytes: GIB }, 4096, 4 * GIB)).toEqual([]);
    const huge = { ...PACK, requirements: { ...PACK.requirements, weightsBytes: 100 * GIB } };
    expect(blocks(huge, { ...DEVICE, memoryBytes: 8 * GIB })[0]?.kind).toBe("risk");
  });

  it("compares the download with what may be stored", () => {
    expect(blocks(PACK, { ...DEVICE, freeStorageBytes: MIB })[0]?.text).toMatch(/lets this site store 1.0 MiB/);
    expect(blocks(PACK, { ...DEVICE, freeStorageBytes: 0 }, 4096, 0, 0)).toEqual([]);
  });
});

describe("numbers", () => {
  it("are written as people read them", () => {
    expect([0, 1023, 1536, 40 * MIB, 2.61 * GIB].map(formatBytes)).toEqual([
      "0 B",
      "1023 B",
      "1.5 KiB",
      "40 MiB",
      "2.61 GiB",
    ]);
    expect([0.2, 59, 60, 125, 4320].map(formatSeconds)).toEqual(["1 s", "59 s", "1 min", "2 min 5 s", "1 h 12 min"]);
    expect([0.0004, 0.045, 0.0994, 0.1, 12.34].map(formatShort)).toEqual(["0 ms", "45 ms", "99 ms", "0.1 s", "12.3 s"]);
  });

  it("measure a rate over the last seconds only", () => {
    const meter = new RateMeter();
    expect(meter.secondsLeft(10, 0)).toBeUndefined();
    for (let at = 0; at <= 20_000; at += 100) meter.add(at <= 10_000 ? 10_000 : 1_000, at);
    expect(meter.perSecond(20_000)).toBeCloseTo(10_000, -2);
    expect(meter.secondsLeft(50_000, 20_000)).toBeCloseTo(5, 1);
  });
});
