import { afterEach, beforeAll, beforeEach, describe, expect, it, vi } from "vitest";
import type { Device } from "../../src/gpu/device";
import { loadDrafter, tryDrafter } from "../../src/speculative/drafter";
import { Drafter } from "../../src/speculative/drafter_state";
import { counts } from "../../src/stats";
import { type FakeLibrary, fakeLibrary } from "../fake_library";

const URL_ = "https://example.org/model";
const PARAMETERS = [
  { name: "second", shape: [3], dtype: "int8" },
  { name: "first", shape: [2, 2], dtype: "float32" },
];
const SHARD = Uint8Array.from({ length: 28 }, (_, i) => i);
const NAME = "params_shard_drafter_0.bin";
const PAGE = new TextEncoder().encode("<!doctype html>"); // of a server that has one for every address
const RECORDS = [
  { ...PARAMETERS[1], format: "raw", byteOffset: 0, nbytes: 16 },
  { ...PARAMETERS[0], format: "raw", byteOffset: 24, nbytes: 3 },
];

let hash: string;
beforeAll(async () => {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", SHARD));
  hash = [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
});

let files: Record<string, unknown>;
let asked: [string, string | undefined][];
let written: [GPUBuffer, number[]][];
let fake: FakeLibrary;
let drafter: Drafter;
let refusal: string; // of the kernels between rounds
let loses: () => void; // the device
let fits: boolean; // into the device's memory
let tried: number[]; // sizes of buffers for that

/** As a server answers: files in JSON, shards as they are. */
async function answer(url: string, sha256?: string): Promise<Response> {
  asked.push([url, sha256]);
  const found = files[url.slice(URL_.length + 1)];
  if (found === undefined) return new Response("", { status: 404 });
  return found instanceof Uint8Array ? new Response(found as Uint8Array<ArrayBuffer>) : Response.json(found);
}

const rename = (dataPath: unknown) =>
  (files["drafter-tensor-cache.json"] = { records: [{ dataPath, nbytes: SHARD.length, records: RECORDS }] });
const resize = (odd: object) =>
  (files["drafter-tensor-cache.json"] = {
    records: [{ dataPath: NAME, nbytes: SHARD.length, records: [RECORDS[0], { ...RECORDS[1], ...odd }] }],
  });

const load = (options = {}) => loadDrafter([fake.library], URL_, { fetch: answer, ...options });

beforeEach(() => {
  files = {
    "drafter-tensor-cache.json": { records: [{ dataPath: NAME, nbytes: SHARD.length, records: RECORDS }] },
    "provenance.json": { files: { [NAME]: { sha256: hash } } },
    [NAME]: SHARD,
  };
  [asked, written, counts.drafterBytes, counts.reasons.length, counts.enabled] = [[], [], 0, 0, true];
  const writeBuffer = (buffer: GPUBuffer, _: number, bytes: Uint8Array) => written.push([buffer, [...bytes]]);
  const shaders = {
    pushErrorScope: () => undefined,
    popErrorScope: async () => (fits ? null : { message: "out of memory" }),
    createBuffer: ({ size }: GPUBufferDescriptor) => {
      tried.push(size);
      return { destroy: () => tried.pop() };
    },
    createShaderModule: () => ({}),
    createComputePipelineAsync: async () => {
      if (refusal) throw new Error(refusal);
      return {};
    },
  };
  [refusal, fits, tried] = ["", true, []];
  vi.stubGlobal("GPUBufferUsage", { STORAGE: 128, COPY_DST: 8, COPY_SRC: 4 });
  const lost = new Promise<void>((resolve) => {
    loses = resolve;
  });
  fake = fakeLibrary({ native: { writeBuffer, ...shaders }, device: { lost } } as unknown as Device);
  fake.library.readMetadata = () => JSON.stringify({ drafter: { params: PARAMETERS } });
  drafter = Drafter.of(fake.library);
});
afterEach(() => void vi.unstubAllGlobals());

describe("a drafter", () => {
  it("is put onto the device in the library's order, in whole words", async () => {
    await load({ drafts: 4 });
    expect(asked).toEqual([
      [`${URL_}/drafter-tensor-cache.json`, undefined],
      [`${URL_}/provenance.json`, undefined],
      [`${URL_}/${NAME}`, hash],
    ]);
    const [, ...tensors] = fake.calls.find(([name]) => name === "ffi.Array")! as [string, ...number[]];
    const byBuffer = new Map(written);
    const content = tensors.map((tensor) => byBuffer.get(fake.buffers.get(tensor)!.buffer));
    expect(content).toEqual([[24, 25, 26, 0], [...SHARD.subarray(0, 16)]]);
    expect(drafter.weights).toBeGreaterThan(0);
    expect(fake.released).toEqual(expect.arrayContaining(tensors)); // the array holds them
    expect(counts.drafterBytes).toBe(SHARD.length);
    expect(drafter.drafts).toBe(4);
  });

  it("drafts at most a chunk less one", async () => {
    const metadata = { drafter: { params: PARAMETERS } };
    for (const [chunk, most] of [
      [512, 8],
      [4, 3],
    ]) {
      fake.library.readMetadata = () => JSON.stringify({ ...metadata, prefill_chunk_size: chunk });
      await load();
      expect(drafter.mostDrafts).toBe(most);
    }
  });

  it("is of no use where a chunk has one token", async () => {
    fake.library.readMetadata = () => JSON.stringify({ drafter: { params: PARAMETERS }, prefill_chunk_size: 1 });
    await expect(load()).rejects.toThrow("chunks of one token leave no room for drafts");
  });

  it("is not loaded a second time: other drafts can be asked for", async () => {
    await load();
    await load({ drafts: 2 });
    expect(asked.filter(([url]) => url.endsWith(NAME))).toHaveLength(1);
    expect([counts.drafterBytes, drafter.drafts]).toEqual([SHARD.length, 2]);
  });

  it("is loaded once for two that ask at the same time, with the drafts of the later one", async () => {
    const asking = [
      tryDrafter([fake.library], URL_, { fetch: answer }),
      tryDrafter([fake.library], URL_, { fetch: answer, drafts: 2 }),
    ];
    expect(await Promise.all(asking)).toEqual([true, true]);
    expect(asked.filter(([url]) => url.endsWith(NAME))).toHaveLength(1);
    expect([counts.drafterBytes, drafter.drafts, counts.reasons]).toEqual([SHARD.length, 2, []]);
  });

  it("is loaded for each of two models that ask at the same time", async () => {
    const second = fakeLibrary(fake.library.device!);
    second.library.readMetadata = fake.library.readMetadata;
    const both = [second.library, fake.library];
    await Promise.all([loadDrafter(both, URL_, { fetch: answer }), loadDrafter(both, URL_, { fetch: answer })]);
    expect(both.map((library) => Drafter.of(library).weights > 0)).toEqual([true, true]);
    expect(counts.drafterBytes).toBe(2 * SHARD.length);
  });

  it("comes for the second of two that ask at the same time, where the first one's request is aborted", async () => {
    const aborted = (url: string, sha256?: string) =>
      sha256 ? Promise.reject(new DOMException("no longer wanted", "AbortError")) : answer(url);
    const [first, ...others] = [load({ fetch: aborted }), load(), load({ drafts: 3 })];
    await expect(first).rejects.toThrow("no longer wanted");
    await Promise.all(others);
    expect(asked.filter(([url]) => url.endsWith(NAME))).toHaveLength(1);
    expect([counts.drafterBytes, drafter.drafts]).toEqual([SHARD.length, 3]);
  });

  it("goes with its device", async () => {
    await load();
    loses();
    await Promise.resolve();
    expect([drafter.weights, counts.drafterBytes]).toEqual([0, 0]);
  });

  it.each<[string, () => void, RegExp]>([
    ["the module is switched off", () => (counts.enabled = false), /^the module is switched off/],
    ["the model goes", () => Object.assign(fake.library.device!, { isLost: true }), /^the model went, with its device/],
  ])("is not put onto a device where meanwhile %s", async (_, change, words) => {
    const fetch = async (url: string, sha256?: string) => {
      if (sha256) change();
      return answer(url, sha256);
    };
    await expect(load({ fetch })).rejects.toThrow(words);
    expect([drafter.weights, counts.drafterBytes, written]).toEqual([0, 0, []]);
  });

  it("is not asked for where the module is switched off", async () => {
    counts.enabled = false;
    await expect(load()).rejects.toThrow("the module is switched off");
    expect(asked).toEqual([]);
  });

  it.each<[string, () => void, RegExp]>([
    ["whose device refuses the kernels between rounds", () => (refusal = "no such stage"), /no such stage/],
    ["for which there is no room", () => (fits = false), /^the device has no room for it: out of memory/],
    ["of other bytes", () => (files[NAME] = SHARD.slice().fill(9, 0, 1)), /_0\.bin: expected sha256 .* found /],
    ["cut off", () => (files[NAME] = SHARD.subarray(1)), /expected 28 bytes, found 27/],
    ["that does not come", () => delete files[NAME], /_0\.bin: the server answered 404/],
    ["that no provenance names", () => (files["provenance.json"] = { files: {} }), /does not know params_shard/],
    [
      "of another model",
      () => (fake.library.readMetadata = () => JSON.stringify({ drafter: { params: PARAMETERS.slice(1) } })),
      /no loaded model takes these weights/,
    ],
    [
      "whose list is a page",
      () => (files["drafter-tensor-cache.json"] = PAGE),
      /drafter-tensor-cache\.json: .* no JSON/,
    ],
    ["without a list of shards", () => (files["drafter-tensor-cache.json"] = {}), /json lists no shards/],
    ["in another folder", () => rename("../other/params_shard_0.bin"), /expected plain file names, found "\.\./],
    ["without a name", () => rename(7), /expected plain file names, found 7/],
    ["named as what every object has", () => rename("constructor"), /does not know constructor/],
    ["of a size that is none", () => resize({ nbytes: -3 }), /weights that lie inside of it/],
    ["that ends after its file", () => resize({ byteOffset: 1e9 }), /weights that lie inside of it/],
    ["of fewer bytes than its shape has", () => resize({ nbytes: 0 }), /expected as many bytes as/],
    ["of a kind that is none", () => resize({ dtype: null }), /expected as many bytes as/],
    ["of a shape that is larger", () => resize({ shape: [1e6, 1e6] }), /expected as many bytes as/],
    ["of which nothing is known", () => (files["provenance.json"] = null), /does not know params_shard/],
    ["with a hash that is null", () => (files["provenance.json"] = { files: { [NAME]: null } }), /has no sha256/],
    [
      "with a hash that is a number",
      () => (files["provenance.json"] = { files: { [NAME]: { sha256: 1 } } }),
      /no sha256/,
    ],
    ["without a shape", () => resize({ shape: null }), /weights that lie inside of it/],
    ["whose list is null", () => (files["drafter-tensor-cache.json"] = null), /json lists no shards/],
    ["of which a shard is null", () => (files["drafter-tensor-cache.json"] = { records: [null] }), /plain file names/],
    ["without a list of files", () => (files["provenance.json"] = {}), /does not know params_shard/],
    [
      "for a model whose device went",
      () => Object.assign(fake.library.device!, { isLost: true }),
      /no loaded model takes these weights/,
    ],
    ["for a library without one", () => (fake.library.readMetadata = () => "{}"), /no loaded model takes/],
  ])("%s is refused", async (_, change, words) => {
    change();
    await expect(load()).rejects.toThrow(words);
    expect([drafter.weights, counts.drafterBytes]).toEqual([0, 0]);
    const made = [...fake.buffers.keys()];
    expect(fake.released).toEqual(expect.arrayContaining(made));
  });

  it("that is too large for its device is not asked of the runtime, which would give the device up", async () => {
    fits = false;
    await expect(load()).rejects.toThrow("no room");
    expect([fake.buffers.size, tried, written]).toEqual([0, [], []]);
  });

  it("makes 0 to 8 drafts", async () => {
    for (const drafts of [-1, 9, 1.5]) await expect(load({ drafts })).rejects.toThrow(`found ${drafts}`);
    expect(asked).toEqual([]);
  });

  it("that cannot be used is a reason, and no error", async () => {
    expect(await tryDrafter([], URL_, { fetch: answer })).toBe(false);
    expect(counts.reasons).toEqual([expect.stringMatching(/^no drafter: no loaded model takes/)]);
    expect(await tryDrafter([fake.library], URL_, { fetch: answer })).toBe(true);
  });
});

describe("its shards in the browser", () => {
  let kept: Map<string, Response>;
  beforeEach(() => {
    kept = new Map();
    const absolute = (key: string | Request) => new Request(key).url;
    const cache = {
      match: async (key: string) => kept.get(absolute(key))?.clone(),
      put: async (key: string, response: Response) => void kept.set(absolute(key), response),
      keys: async () => [...kept.keys()].map((url) => new Request(url)),
      delete: async (key: string | Request) => kept.delete(absolute(key)),
    };
    vi.stubGlobal("caches", { open: async () => cache });
    vi.stubGlobal("fetch", answer);
  });

  it("are fetched once, and the lists each time", async () => {
    await loadDrafter([fake.library], URL_, {});
    drafter.weights = 0;
    asked = [];
    await loadDrafter([fake.library], URL_, {});
    expect(asked.map(([url]) => url)).toEqual([`${URL_}/drafter-tensor-cache.json`, `${URL_}/provenance.json`]);
  });

  it("are fetched again where what came was something else", async () => {
    files[NAME] = SHARD.subarray(1);
    await expect(loadDrafter([fake.library], URL_, {})).rejects.toThrow("expected 28 bytes, found 27");
    files[NAME] = SHARD;
    await loadDrafter([fake.library], URL_, {});
    expect(drafter.weights).toBeGreaterThan(0);
  });

  it("go when the package has others, and those of other packages stay", async () => {
    const [old, below, other] = [
      `${URL_}/${NAME}?0123`,
      `${URL_}/below/${NAME}?4567`,
      `https://example.org/${NAME}?89`,
    ];
    for (const url of [old, below, other]) kept.set(url, new Response("x"));
    await loadDrafter([fake.library], URL_, {});
    expect([...kept.keys()].sort()).toEqual(
      [below, other, `${URL_}/drafter-tensor-cache.json`, `${URL_}/provenance.json`, `${URL_}/${NAME}?${hash}`].sort(),
    );
  });
});
