// A package's small files, as they are and as somebody else may have written them.
import { describe, expect, it } from "vitest";
import { keyOf } from "../src/download/cache";
import { sha256 } from "../src/download/hash";
import { describe as read, drafterBytes, EMBEDDINGS, withoutDrafter } from "../src/package/package";
import { withLibrary } from "../src/package/libraries";
import { type Device, fitting } from "../src/package/requirements";
import { UserError } from "../src/package/user_error";

const URL = "https://x.y/my-model/";
const HASH = "0".repeat(64);
const WRONG = /undefined|NaN|\[object|\u202e/;
type Json = Record<string, unknown>;

const encode = (value: unknown) => new TextEncoder().encode(JSON.stringify(value)) as Uint8Array<ArrayBuffer>;

/** The four files as values. */
function values() {
  return {
    "mlc-chat-config.json": {
      quantization: "q4f16_1",
      context_window_size: 1024,
      temperature: 1,
      tokenizer_files: ["tokenizer.json"],
      conv_template: { role_empty_sep: "" },
    } as Json,
    "mlc-model-manifest.json": {
      schema: "mlc.model-package",
      tasks: { "chat.completions": { inputs: { image: { processor: { kind: "image_decode", resize: {} } } } } },
    } as Json,
    "tensor-cache.json": {
      records: [{ dataPath: "params_shard_0.bin", records: [{ dtype: "float16", nbytes: 8 }] }],
    } as Json,
    "provenance.json": {
      schema: "gemma4_compile.package",
      schema_version: 1,
      library: "model.wasm",
      build: { source: { kind: "hub", model: "you/model" }, requirements: { features: ["shader-f16"] } },
      files: Object.fromEntries(
        ["model.wasm", "params_shard_0.bin", "tokenizer.json"].map((name) => [name, { nbytes: 8, sha256: HASH }]),
      ),
    } as Json,
  };
}

function files(change: Json = {}, of: keyof ReturnType<typeof values> = "provenance.json") {
  const all = values();
  return new Map(
    Object.entries({ ...all, [of]: { ...all[of], ...change } }).map(([name, value]) => [name, encode(value)]),
  );
}

/** The same with every field that the page reads. */
function full(): ReturnType<typeof values> {
  const all = values();
  Object.assign(all["mlc-chat-config.json"], {
    top_p: 0.9,
    repetition_penalty: 1,
    frequency_penalty: 0,
    presence_penalty: 0,
    first_user: "U",
    conv_template: {
      role_empty_sep: "",
      system_template: "S{system_message}",
      roles: { user: "u", assistant: "a" },
      add_role_after_system_message: false,
    },
  });
  const image = { kind: "image_decode", num_embeddings: 4, resize: { mode: "stretch", width: 3, height: 4 } };
  const audio = { kind: "audio_decode", sample_rate_hz: 16_000, min_samples: 1, max_samples: 16_000 };
  const inputs = { image: { processor: image }, audio: { processor: audio } };
  all["mlc-model-manifest.json"]["tasks"] = { "chat.completions": { inputs } };
  const sizes = ["subgroup_size", "max_binding_bytes", "weights_bytes", "kv_sliding_bytes", "kv_full_bytes"];
  all["provenance.json"]["build"] = {
    source: { kind: "hub", model: "you/model" },
    recipe: "q4f16",
    drops_padding: true,
    conversation: [{ dialogue: "two turns", template: "a", client: "b" }],
    requirements: { features: ["shader-f16"], ...Object.fromEntries(sizes.map((name) => [name, 1])) },
  };
  return all;
}

/** Puts a value at every place of a JSON value, one after the other. */
function* changed(value: unknown, odd: unknown): Generator<unknown> {
  if (typeof value !== "object" || value === null) return;
  for (const [key, inner] of Object.entries(value)) {
    const put = (each: unknown) => (Array.isArray(value) ? value.with(Number(key), each) : { ...value, [key]: each });
    yield put(odd);
    for (const each of changed(inner, odd)) yield put(each);
  }
}

describe("a package's small files", () => {
  it("are of the task that is asked for, and an embedder's hold its prompts", async () => {
    const tasks = { embeddings: { executor: "text" } };
    const embedder = files({ tasks }, "mlc-model-manifest.json");
    await expect(read(URL, embedder, false)).rejects.toMatchObject({
      message: expect.stringContaining("no model that can chat"),
      hint: expect.stringContaining("Settings, Search"),
    });
    await expect(read(URL, files(), false, EMBEDDINGS)).rejects.toThrow("no model that can embed texts");
    expect((await read(URL, embedder, false, EMBEDDINGS)).prompts).toEqual({ query: "", document: "" });
    const config = { ...values()["mlc-chat-config.json"], embedding: { prompts: { query: "Q: ", document: "D: " } } };
    embedder.set("mlc-chat-config.json", encode(config));
    expect((await read(URL, embedder, false, EMBEDDINGS)).prompts).toEqual({ query: "Q: ", document: "D: " });
  });

  it("are enough for packages without requirements of their own", async () => {
    const pack = await read(URL, files({ build: {} }), false);
    expect(pack).toMatchObject({ title: "my-model", recipe: "q4f16_1", contextLength: 1024, totalBytes: 24 });
    expect(pack.requirements).toMatchObject({ features: ["shader-f16"], weightsBytes: 8 });
  });

  it("have a hash that a person can compare", async () => {
    const given = files();
    expect((await read(URL, given, false)).digest).toBe(await sha256(given.get("provenance.json")!));
  });

  it("name the drafter's files, which can be left out", async () => {
    const listed = values()["provenance.json"]["files"] as Json;
    const [shard, list] = [
      { nbytes: 700, sha256: HASH },
      { nbytes: 40, sha256: HASH },
    ];
    const own = { "params_shard_drafter_0.bin": shard, "drafter-tensor-cache.json": list };
    const pack = await read(URL, files({ files: { ...listed, ...own } }), false);
    expect([...pack.drafter].sort()).toEqual(Object.keys(own).sort());
    expect(drafterBytes(pack)).toBe(740);
    expect(pack.requirements.weightsBytes).toBe(748);
    const plain = withoutDrafter(pack);
    expect(plain).toMatchObject({ hasDrafter: true, totalBytes: pack.totalBytes - 740 });
    expect(plain.files.map(({ name }) => name)).toEqual(Object.keys(listed));
    expect([plain.drafter.size, plain.requirements.weightsBytes]).toEqual([0, 8]);
    expect((await read(URL, files(), false)).hasDrafter).toBe(false);
  });

  it.each([
    [{ library: "model.so" }, /no library for browsers/],
    [{ library: "other.wasm" }, /`library` should be one of `files`/],
    [{ schema_version: 2 }, /unknown kind/],
    [
      { files: { "mlc-chat-config.json": { nbytes: 1, sha256: HASH }, "model.wasm": { nbytes: 1, sha256: HASH } } },
      /is not the file/,
    ],
    [{ files: { "model.wasm": { nbytes: 1, sha256: "0" } } }, /`files.model.wasm.sha256` should be 64 hexadecimal/],
  ])("are refused: %o", async (change, words) => {
    await expect(read(URL, files(change), false)).rejects.toThrow(words);
  });

  it.each([
    "../other/model.wasm",
    "..",
    "a/b",
    "a\\b",
    "%2e%2e/a",
    "/etc/passwd",
    "https://a.b/c",
    "a?b",
    "a#b",
    "",
    " a",
    "a\u0000",
  ])("name no file %j, which is more than a name", async (name) => {
    const listed = values()["provenance.json"]["files"] as Json;
    await expect(
      read(URL, files({ files: { ...listed, [name]: { nbytes: 1, sha256: HASH } } }), false),
    ).rejects.toThrow(/plain file name/);
    const records = [{ dataPath: name, records: [] }];
    await expect(read(URL, files({ records }, "tensor-cache.json"), false)).rejects.toThrow(/plain file name/);
  });

  it("have cache keys inside of their own folder, whatever a file is called", async () => {
    const pack = await read(URL, files(), false);
    for (const { name } of pack.files)
      expect(new globalThis.URL(keyOf(pack, name)).href).toBe(`${URL}resolve/${pack.version}/${name}`);
  });

  it.each([-1, 0.5, 1e300, 2 ** 60, "8", null, true])("have no size %j", async (nbytes) => {
    const listed = values()["provenance.json"]["files"] as Json;
    const change = { files: { ...listed, "params_shard_0.bin": { nbytes, sha256: HASH } } };
    await expect(read(URL, files(change), false)).rejects.toThrow(/whole number/);
  });

  it("have hashes of pieces where a file is long", async () => {
    const listed = values()["provenance.json"]["files"] as Json;
    const pieces = { nbytes: 2 ** 20, sha256: ["1".repeat(64), "2".repeat(64), "3".repeat(64)] };
    const long = { nbytes: 2 ** 21 + 1, sha256: HASH, pieces };
    const pack = await read(URL, files({ files: { ...listed, "params_shard_0.bin": long } }), false);
    expect(pack.files.map((file) => file.pieces)).toEqual([undefined, pieces, undefined]);
  });

  it.each<[string, unknown, RegExp]>([
    ["no object", [HASH], /pieces` should be an object/],
    ["none", { nbytes: 2 ** 20, sha256: [] }, /a list of 3 for the file's size/],
    ["too few", { nbytes: 2 ** 20, sha256: [HASH, HASH] }, /a list of 3 for the file's size/],
    ["too many", { nbytes: 2 ** 20, sha256: Array(4).fill(HASH) }, /a list of at most 3/],
    ["absurdly many", { nbytes: 1, sha256: Array(2 ** 18).fill(HASH) }, /whole number from/],
    ["too large ones", { nbytes: 2 ** 30, sha256: [HASH] }, /whole number from/],
    ["of no size", { sha256: [HASH] }, /whole number from/],
    ["no hashes", { nbytes: 2 ** 20, sha256: [HASH, "0", HASH] }, /64 hexadecimal digits/],
    ["texts of any length", { nbytes: 2 ** 20, sha256: [HASH, HASH, HASH + "0"] }, /at most 64 characters/],
  ])("have no pieces that are %s", async (_, pieces, words) => {
    const listed = values()["provenance.json"]["files"] as Json;
    const long = { nbytes: 2 ** 21 + 1, sha256: HASH, pieces };
    await expect(read(URL, files({ files: { ...listed, "params_shard_0.bin": long } }), false)).rejects.toThrow(words);
  });

  it("are not larger in all than packages are", async () => {
    const many = Object.fromEntries(
      Array.from({ length: 100 }, (_, i) => [`f${i}`, { nbytes: 2 ** 32, sha256: HASH }]),
    );
    const listed = values()["provenance.json"]["files"] as Json;
    await expect(read(URL, files({ files: { ...listed, ...many } }), false)).rejects.toThrow(/in all/);
  });

  it("name weights and tokenizers that the provenance has hashes of", async () => {
    const records = [{ dataPath: "params_shard_9.bin", records: [] }];
    await expect(read(URL, files({ records }, "tensor-cache.json"), false)).rejects.toThrow(/dataPath/);
    const change = { tokenizer_files: ["../other/tokenizer.json"] };
    await expect(read(URL, files(change, "mlc-chat-config.json"), false)).rejects.toThrow(/tokenizer_files/);
  });

  it("have a name on one line, which turns nothing around it", async () => {
    const model = `you/a\u202eb\nc${"d".repeat(500)}`;
    const { title } = await read(URL, files({ build: { source: { model } } }), false);
    expect(title).toBe(`a b c${"d".repeat(91)}`);
    expect((await read("https://x.y/%E0%A4%A/", files({ build: {} }), false)).title).toBe("%E0%A4%A");
  });

  it("are refused in words wherever they are odd", async () => {
    const odd: unknown[] = [null, 0, -1, 1.5, 1e308, 2 ** 53, "x", "", "\u202e", "\u0000", "x".repeat(2000), true, []];
    odd.push([[]], [null], {}, { a: null }, { constructor: 1 }, JSON.parse('{"__proto__":{"user":1}}'));
    odd.push(Array(70).fill({}), Array(40).fill("a"));
    let refused = 0;
    for (const [name, value] of Object.entries(full())) {
      for (const each of [...odd, ...odd.flatMap((one) => [...changed(value, one)])]) {
        const given = new Map(Object.entries(full()).map(([other, own]) => [other, encode(own)]));
        const found = await read(URL, given.set(name, encode(each)), false).catch((error: Error) => error);
        if (!(found instanceof Error)) {
          expect(JSON.stringify([found.title, found.recipe, found.difference, found.requirements])).not.toMatch(WRONG);
          continue;
        }
        refused++;
        if (!(found instanceof UserError)) throw new Error(`${name}: ${JSON.stringify(each)}: ${String(found)}`);
        expect(found.message + found.hint).not.toMatch(WRONG);
      }
    }
    expect(refused).toBeGreaterThan(300);
  });

  it("that are deep or no text at all are refused in words, too", async () => {
    for (const text of ["[".repeat(1e6), '{"a":'.repeat(1e5), "\u00ff", ""]) {
      const given = files().set("provenance.json", new TextEncoder().encode(text) as Uint8Array<ArrayBuffer>);
      await expect(read(URL, given, false)).rejects.toThrow(/no JSON/);
    }
    await expect(read(URL, files().set("provenance.json", new Uint8Array([0xff])), false)).rejects.toThrow(/no JSON/);
  });
});

describe("a package's numerics", () => {
  const report = {
    schema: "gemma4_compile.numerics",
    schema_version: 2,
    passed: true,
    texts: { code: { whole: { kl_mean: 0.5, top1: 0.75, perplexity: 3, reference_perplexity: 2 } } },
  };

  async function withReport(value: unknown, sha?: string) {
    const data = encode(value);
    const listed = { ...(values()["provenance.json"]["files"] as Json) };
    listed["numerics.json"] = { nbytes: data.length, sha256: sha ?? (await sha256(data)) };
    return read(URL, files({ files: listed }).set("numerics.json", data), false);
  }

  it("are what its report says", async () => {
    const { numerics } = await withReport(report);
    expect(numerics?.texts.map(({ name, agreement }) => [name, agreement])).toEqual([["Code", 0.75]]);
  });

  it("are nothing where there is no report, or an odd one", async () => {
    expect((await read(URL, files(), false)).numerics).toBeUndefined();
    expect((await withReport({ ...report, texts: 1 })).numerics).toBeUndefined();
  });

  it("are of this package", async () => {
    await expect(withReport(report, HASH)).rejects.toThrow(/numerics\.json is not the file/);
  });
});

describe("a package of several libraries", () => {
  const NAMES = ["model.wasm", "model-f16.wasm", "model-cuda.so", "params_shard_0.bin", "tokenizer.json"];
  const library = (file: string, name: string, more: Json = {}) => ({ file, name, target: "webgpu", ...more });
  const LIBRARIES = [
    library("model.wasm", "default", { requirements: { features: [], activation_bytes: 5 } }),
    library("model-f16.wasm", "f16", { requirements: { features: ["shader-f16"], activation_bytes: 7 } }),
    library("model-cuda.so", "cuda", { target: "cuda" }),
  ];
  const several = (change: Json = {}) =>
    files({
      files: Object.fromEntries(NAMES.map((name) => [name, { nbytes: 8, sha256: HASH }])),
      libraries: LIBRARIES,
      ...change,
    });
  const device = (...features: string[]) =>
    ({
      features: new Set(features),
      languageFeatures: new Set(),
      limits: {
        maxBufferSize: 2 ** 30,
        maxStorageBufferBindingSize: 2 ** 30,
        maxComputeWorkgroupStorageSize: 32768,
        maxStorageBuffersPerShaderStage: 10,
        maxComputeInvocationsPerWorkgroup: 256,
      },
      subgroupMinSize: 0,
      subgroupMaxSize: 0,
      matrixConfigs: [],
      isDriven: true,
    }) as unknown as Device;

  it("downloads one of them, and has that one's requirements", async () => {
    const pack = await read(URL, several(), false);
    const names = (of: typeof pack) => of.files.map(({ name }) => name).sort();
    expect(names(pack)).toEqual(["model.wasm", "params_shard_0.bin", "tokenizer.json"]);
    expect([pack.totalBytes, pack.requirements.activationBytes]).toEqual([24, 5]);
    const other = withLibrary(pack, "f16");
    expect(names(other)).toEqual(["model-f16.wasm", "params_shard_0.bin", "tokenizer.json"]);
    expect([other.library, other.totalBytes, other.requirements.activationBytes]).toEqual(["model-f16.wasm", 24, 7]);
    expect(withLibrary(other, "default")).toMatchObject({ library: "model.wasm", requirements: pack.requirements });
  });

  it("is of those that fit the device", async () => {
    const pack = await read(URL, several(), false);
    expect(fitting(pack, device())).toEqual(["default"]);
    expect(fitting(pack, device("shader-f16"))).toEqual(["default", "f16"]);
  });

  it("may have a main library that is not for browsers", async () => {
    const pack = await read(URL, several({ library: "model-cuda.so" }), false);
    expect(pack.library).toBe("model.wasm");
  });

  it.each<[Json, RegExp]>([
    [{ libraries: {} }, /`libraries` should be a list/],
    [{ libraries: [7] }, /should be an object/],
    [{ libraries: [library("../x.wasm", "x")] }, /a plain file name/],
    [{ libraries: [library("other.wasm", "x")] }, /one of `files`/],
    [{ libraries: [library("model.wasm", "<b>")] }, /a plain name/],
    [{ libraries: [LIBRARIES[0], library("model-f16.wasm", "default", { requirements: {} })] }, /different names/],
    [{ libraries: [LIBRARIES[2]] }, /no library for browsers/],
    [{ libraries: [library("model.wasm", "default")] }, /`default\.requirements` should be an object/],
  ])("is refused where its list is damaged: %j", async (change, message) => {
    await expect(read(URL, several(change), false)).rejects.toThrow(message);
  });
});
