// The list of models that a page offers: what is read of it, what is refused, and what a page without one does.
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { Fields } from "../src/package/json_fields";
import { modelLine, offeredModels, readModels, smallerModels } from "../src/package/models";

const BASE = "https://a.b/page/";
const ENTRY = {
  name: "E2B",
  address: "me/e2b@v1",
  size: 2.5 * 2 ** 30,
  memory: 3 * 2 ** 30,
  modalities: ["text", "image"],
};

const read = (value: unknown) =>
  readModels(Fields.parse(new TextEncoder().encode(JSON.stringify(value)), "models.json"), BASE);

type Answer = [status: number, body: string, type?: string];

/** Answers by address; 404 for all others. */
function serve(answers: Record<string, Answer>): string[] {
  const asked: string[] = [];
  vi.stubGlobal("fetch", async (url: string) => {
    asked.push(url);
    const [status, body, type] = answers[url] ?? [404, "not here"];
    return new Response(body, { status, headers: { "content-type": type ?? "application/json" } });
  });
  return asked;
}

afterEach(() => vi.unstubAllGlobals());

describe("readModels", () => {
  it("reads what is there", () => {
    const [model] = read({ models: [ENTRY] });
    expect(model).toEqual({
      name: "E2B",
      address: "me/e2b@v1",
      bytes: ENTRY.size,
      memoryBytes: ENTRY.memory,
      modalities: ["text", "image"],
    });
    expect(modelLine(model!)).toBe("2.50 GiB · 3.00 GiB of memory · text, image");
  });

  it("takes a name and an address alone", () => {
    const [model] = read({ models: [{ name: "x", address: "package/" }] });
    expect(modelLine(model!)).toBe("");
  });

  it.each([
    [{ name: "" }, /models\[0\]\.name/],
    [{ name: "x".repeat(81) }, /models\[0\]\.name/],
    [{ address: " " }, /models\[0\]\.address/],
    [{ address: "javascript:alert(1)" }, /cannot be read/],
    [{ address: "https://me:secret@a.b/" }, /name or password/],
    [{ size: -1 }, /models\[0\]\.size/],
    [{ memory: 1.5 }, /models\[0\]\.memory/],
    [{ modalities: ["smell"] }, /models\[0\]\.modalities/],
    [{ modalities: "text" }, /models\[0\]\.modalities/],
    [{ size: "2 GB" }, /models\[0\]\.size/],
    [{ name: "\u202e " }, /models\[0\]\.name/],
    [{ address: "me/e2b@a b" }, /models\[0\]\.address/],
  ])("refuses %o", (change, words) => expect(() => read({ models: [{ ...ENTRY, ...change }] })).toThrow(words));

  it("leaves aside what it does not know", () => {
    const [model] = read({ models: [{ ...ENTRY, licence: "Apache-2.0" }], updated: "today" });
    expect(model!.name).toBe("E2B");
  });

  it("reads an address from the page on", () => {
    const of = (address: string) => read({ models: [{ name: "x", address }] })[0]!.address;
    for (const address of ["tiny", "./models/e2b", "/package/", "https://c.d/e2b", "owner/name"])
      expect(of(address)).toBe(address);
  });

  it.each([
    ["names", [ENTRY, { ...ENTRY, address: "tiny/" }], /models\[1\]\.name/],
    [
      "addresses",
      [
        { name: "a", address: "tiny" },
        { name: "b", address: "https://a.b/page/tiny/" },
      ],
      /models\[1\]\.address/,
    ],
  ])("refuses equal %s", (_, models, words) => expect(() => read({ models })).toThrow(words));

  it.each([[{}], [{ model: [ENTRY] }], [{ models: null }], [{ models: {} }], [[ENTRY]]])(
    "refuses %o, which has no list",
    (value) => expect(() => read(value)).toThrow(/`models`|JSON object/),
  );

  it("refuses a list without end", () => {
    expect(() => read({ models: Array.from({ length: 1001 }, () => ENTRY) })).toThrow(/at most 1,000/);
  });
});

describe("offeredModels", () => {
  // Node 20 has no navigator.
  beforeEach(() => vi.stubGlobal("navigator", { onLine: true }));
  const LIST = `${BASE}models.json`;
  const there = JSON.stringify({ models: [ENTRY, { name: "tiny", address: "tiny/" }] });

  it("asks no host but the page's own before a person chooses", async () => {
    const asked = serve({ [LIST]: [200, there] });
    expect((await offeredModels(BASE)).models.map((model) => model.name)).toEqual(["E2B", "tiny"]);
    expect(asked).toEqual([LIST]);
  });

  it.each<[string, Answer]>([
    ["is not there", [404, ""]],
    ["is on a server with a problem", [503, ""]],
    ["is the page itself", [200, "<!doctype html>", "text/html; charset=utf-8"]],
  ])("is empty where the list %s", async (_, answer) => {
    serve({ [LIST]: answer });
    expect(await offeredModels(BASE)).toEqual({ models: [] });
  });

  it("does not wait for a server that never answers", async () => {
    const asked: string[] = [];
    vi.stubGlobal("fetch", (url: string, { signal }: RequestInit) => {
      asked.push(url);
      return new Promise((_, reject) => signal!.addEventListener("abort", () => reject(signal!.reason)));
    });
    const late = new AbortController();
    vi.spyOn(AbortSignal, "timeout").mockReturnValue(late.signal);
    const offer = offeredModels(BASE);
    late.abort();
    expect(await offer).toEqual({ models: [] });
    expect(asked).toEqual([LIST]);
    vi.restoreAllMocks();
  });

  it.each<[string, RegExp]>([
    ["no list", /models\.json is no JSON file/],
    [`{"models": "${" ".repeat(2 ** 18)}"}`, /longer than 256 KiB/],
  ])("says what is wrong with a list", async (body, words) => {
    serve({ [LIST]: [200, body] });
    const { models, fault } = await offeredModels(BASE);
    expect(models).toEqual([]);
    expect(fault?.message).toMatch(words);
  });
});

it("offers what takes less memory, or less to download where no memory is said, the largest first", () => {
  const model = (name: string, memoryBytes: number, bytes = 9) => ({
    name,
    address: name,
    bytes,
    memoryBytes,
    modalities: [],
  });
  const models = [model("a", 1), model("b", 3), model("c", 2), model("d", 0, 4), model("e", 0, 5), model("f", 0, 0)];
  expect(smallerModels({ models }, 3, 5).map(({ name }) => name)).toEqual(["c", "a", "d"]);
  expect(smallerModels({ models: [] }, 3, 5)).toEqual([]);
});
