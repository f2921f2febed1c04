import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { CLIENT_LIMITS } from "gemma4-web/choose";
import { clientUrl } from "../src/download/cache";
import { choose } from "../src/package/libraries";
import type { Package } from "../src/package/package";
import type { Device } from "../src/package/requirements";

const NEEDS = {
  languageFeatures: [],
  subgroupSize: 0,
  maxBindingBytes: 0,
  maxThreadsPerBlock: 0,
  maxSharedBytes: 0,
  maxStorageBuffers: 0,
};
const library = (name: string, float16: string, features: string[]) => ({
  file: `${name}.wasm`,
  name,
  sha256: name.repeat(9),
  nbytes: 1,
  limits: "default",
  activations: "float",
  float16,
  needs: { ...NEEDS, features, subgroupSize: features.includes("subgroups") ? 4 : 0 },
  requirements: {},
});
const LIBRARIES = [
  library("default", "words", []),
  library("f16", "native", ["shader-f16"]),
  library("subgroups", "native", ["shader-f16", "subgroups"]),
];
const PACK = {
  url: "https://example.org/offline/",
  version: "0123456789abcdef",
  library: "default.wasm",
  libraries: LIBRARIES,
  files: [],
  offline: true,
} as unknown as Package;
const FEATURES = ["shader-f16", "subgroups"];

let stored: Set<string>;

beforeEach(() => {
  stored = new Set();
  const cache = {
    match: async (key: string) => (stored.has(key) ? new Response("x") : undefined),
    put: async () => undefined,
    delete: async () => false,
    keys: async () => [],
  };
  const adapter = {
    features: new Set(FEATURES),
    limits: { ...CLIENT_LIMITS },
    info: {},
    requestDevice: () => Promise.reject(new Error("busy")),
  };
  vi.stubGlobal("caches", { open: async () => cache });
  vi.stubGlobal("navigator", { gpu: { requestAdapter: async () => adapter }, userAgent: "Fake/1" });
  vi.stubGlobal("fetch", () => Promise.reject(new TypeError("no network")));
});
afterEach(() => vi.unstubAllGlobals());

describe("without a network, of the libraries that fit", () => {
  const device = {
    features: new Set(FEATURES),
    languageFeatures: new Set(),
    limits: { ...CLIENT_LIMITS },
    subgroupMinSize: 0,
    subgroupMaxSize: 0,
    matrixConfigs: [],
    isDriven: true,
  } as unknown as Device;

  it.each([
    [["default"], "default"],
    [["default", "f16"], "f16"],
    [["f16", "default", "subgroups"], "subgroups"],
    [[], "subgroups"],
  ])("%j are downloaded: %s", async (names, expected) => {
    for (const name of names) stored.add(`${clientUrl(PACK)}${name}.wasm`);
    const { choice, pack } = await choose(PACK, device, undefined);
    expect([choice.name, pack.library]).toEqual([expected, `${expected}.wasm`]);
  });
});
