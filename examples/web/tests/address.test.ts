import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { hubModelOf, packageUrl } from "../src/package/address";
import { readPackage } from "../src/package/package";

const HUB = "https://huggingface.co/me/my-model/resolve/";
const MAIN = `${HUB}main/`;

describe("packageUrl", () => {
  it.each([
    ["package", "http://a.b/page/package/"],
    ["/tiny/", "http://a.b/tiny/"],
    ["./models/e2b", "http://a.b/page/models/e2b/"],
    ["../e2b", "http://a.b/e2b/"],
    ["models/e2b/", "http://a.b/page/models/e2b/"],
    ["https://x.y/p?q#h", "https://x.y/p/"],
    ["localhost:8000/package", "http://localhost:8000/package/"],
    ["127.0.0.1:8000", "http://127.0.0.1:8000/"],
    ["example.org/my-package", "https://example.org/my-package/"],
  ])("folder %s", (text, url) => expect(packageUrl(text, "http://a.b/page/")).toBe(url));

  it.each([
    ["me/my-model", MAIN],
    ["  me/my-model ", MAIN],
    ["me/my-model@v2", `${HUB}v2/`],
    ["me/my-model@refs/pr/3", `${HUB}refs%2Fpr%2F3/`],
    ["https://huggingface.co/me/my-model", MAIN],
    ["https://huggingface.co/me/my-model/", MAIN],
    ["https://huggingface.co/me/my-model@v2", `${HUB}v2/`],
    ["https://huggingface.co/me/my-model?library=mlc#card", MAIN],
    ["http://huggingface.co/me/my-model", MAIN],
    ["huggingface.co/me/my-model", MAIN],
    ["hf.co/me/my-model", MAIN],
    ["https://huggingface.co/me/my-model/tree/v2", `${HUB}v2/`],
    ["https://huggingface.co/me/my-model/tree/refs%2Fpr%2F3", `${HUB}refs%2Fpr%2F3/`],
    ["https://huggingface.co/me/my-model/tree/main/web", `${MAIN}web/`],
    ["https://huggingface.co/me/my-model/blob/main/provenance.json", MAIN],
    ["https://huggingface.co/me/my-model/resolve/v2/model.wasm?download=true", `${HUB}v2/`],
    ["https://huggingface.co/me/my-model/resolve/v2/", `${HUB}v2/`],
    ["https://huggingface.co/me/my-model/discussions", MAIN],
  ])("model %s", (text, url) => {
    expect(packageUrl(text, "http://a.b/page/")).toBe(url);
    expect(packageUrl(url, "http://a.b/page/")).toBe(url);
  });

  it.each([
    "",
    "javascript:alert(1)",
    "file:///etc",
    "http://",
    "me/my-model@",
    "me/my-model@a b",
    "-me/model",
    "me/mo--del",
    "https://huggingface.co/me",
    "https://huggingface.co/datasets/me/data",
    `me/${"x".repeat(97)}`,
    "https://me:secret@x.y/p/",
    "https://huggingface.co@x.y/me/my-model",
    "//me@x.y/p/",
    "data:application/json,{}",
    "blob:http://a.b/1",
  ])("refuses %j", (text) => expect(() => packageUrl(text, "http://a.b/")).toThrow(/no|cannot/));

  it.each([
    ["//x.y/p", "http://x.y/p/"],
    ["\\\\x.y\\p", "http://x.y/p/"],
    ["http://0x7f.1/p/", "http://127.0.0.1/p/"],
    ["http://A.B/p", "http://a.b/p/"],
  ])("says whose %s is", (text, url) => expect(packageUrl(text, "http://a.b/page/")).toBe(url));

  it("knows the model of a folder", () => {
    expect(hubModelOf(`${HUB}refs%2Fpr%2F3/`)).toEqual({ id: "me/my-model", revision: "refs/pr/3" });
    expect(hubModelOf("https://x.y/me/my-model/resolve/main/")).toBeUndefined();
  });
});

describe("a model of the hub", () => {
  const asked: string[] = [];
  let status = 200;
  const encode = (value: unknown) => JSON.stringify(value);
  const files: Record<string, string> = {
    "provenance.json": encode({
      schema: "gemma4_compile.package",
      schema_version: 1,
      library: "model.wasm",
      build: {},
      files: { "model.wasm": { nbytes: 1, sha256: "0".repeat(64) } },
    }),
    "mlc-model-manifest.json": encode({ schema: "mlc.model-package", tasks: { "chat.completions": {} } }),
    "mlc-chat-config.json": encode({ quantization: "q4f32_1", context_window_size: 1024 }),
    "tensor-cache.json": encode({ records: [] }),
  };

  beforeEach(() => {
    asked.length = 0;
    status = 200;
    vi.stubGlobal("caches", { open: async () => ({ put: async () => undefined, match: async () => undefined }) });
    vi.stubGlobal("fetch", async (url: string) => {
      asked.push(url);
      return new Response(status === 200 ? files[url.split("/").at(-1)!] : "no", { status });
    });
  });
  afterEach(() => vi.unstubAllGlobals());

  it("is read from its revision's files", async () => {
    const pack = await readPackage(packageUrl("me/my-model@v2", "http://a.b/"));
    expect(asked.sort()).toEqual(
      Object.keys(files)
        .map((name) => `${HUB}v2/${name}`)
        .sort(),
    );
    expect(pack).toMatchObject({ url: `${HUB}v2/`, title: "my-model", recipe: "q4f32_1" });
  });

  it("is told in words where an answer has no file", async () => {
    vi.stubGlobal("fetch", async () => new Response(null, { status: 204 }));
    await expect(readPackage("http://a.b/p/")).rejects.toThrow(/answers 204 without a file/);
  });

  it("names the host that another one leads on to", async () => {
    vi.stubGlobal("fetch", async (url: string) => {
      const name = url.split("/").at(-1)!;
      const response = new Response(files[name]);
      return Object.defineProperty(response, "url", { value: `https://x.y/p/${name}` });
    });
    expect((await readPackage("http://a.b/p/")).redirectedTo).toBe("x.y");
    expect((await readPackage("https://x.y/p/")).redirectedTo).toBeUndefined();
  });

  it.each([
    [404, /me\/my-model on the hub holds no package.*revision main/, /gemma4-compile me\/my-model -o/],
    [401, /does not hand out me\/my-model/, /private/],
    [403, /does not hand out me\/my-model/, /licence/],
    [418, /answers 418/, /folder/],
  ])("that answers %d is told in words", async (answer, message, hint) => {
    status = answer;
    await expect(readPackage(packageUrl("me/my-model", "http://a.b/"))).rejects.toMatchObject({
      message: expect.stringMatching(message),
      hint: expect.stringMatching(hint),
    });
  });
});
