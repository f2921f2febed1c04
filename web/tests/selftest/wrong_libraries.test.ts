import { describe, expect, it } from "vitest";
import { choose } from "../../src/choose/choose";
import type { ChooseOptions } from "../../src/choose";
import { PassedTests } from "../../src/selftest/known_answer_store";
import { WrongLibraries } from "../../src/selftest/wrong_libraries";
import { FakeBrowser, FakePackage, SET, type FakeHardware } from "../fake_choice";

const AT = "https://example.org/model/resolve/main/";
const DESKTOP: FakeHardware = {
  features: ["shader-f16", "subgroups"],
  languageFeatures: ["packed_4x8_integer_dot_product"],
  subgroups: [32, 32],
};

describe("a library that was found wrong", () => {
  const of = async (names: string[]) => FakePackage.of(SET.filter(({ name }) => names.includes(name)));
  const again = (browser: FakeBrowser, pack: FakePackage, options: ChooseOptions = {}) =>
    choose(AT, undefined, { fetch: pack.fetch, ...options }, browser.around);
  const info = { vendor: "maker", architecture: "arch", device: "", description: "" };
  const marked = async (browser: FakeBrowser, ...names: string[]) => {
    const { store, userAgent } = browser.around;
    const known = (await WrongLibraries.open(store, userAgent))!;
    for (const digest of names) await known.add({ digest }, { ...info, subgroupMinSize: 32 });
    return known;
  };

  it("by a model's load is never chosen again, measured or not, while it does not pass", async () => {
    const pack = await of(["default", "int8", "h200"]);
    const browser = new FakeBrowser({ ...DESKTOP, speed: { h200: 1 } });
    expect((await again(browser, pack)).name).toBe("h200");
    const known = await marked(browser, "h200");
    const next = await again(browser, pack);
    expect([next.name, next.measured[0]]).toEqual([
      "int8",
      { name: "h200", problem: "its results were wrong on this device before" },
    ]);
    expect((await again(browser, pack, { measure: false })).name).toBe("int8");
    await marked(browser, "int8");
    expect(await again(browser, pack)).toMatchObject({
      name: "default",
      why: expect.stringContaining("only one left"),
    });
    await known.forget({ digest: "h200" }, { ...info, subgroupMinSize: 32 });
    expect((await again(browser, pack, { measure: false })).name).toBe("h200");
  });

  it("is not known for another device, browser or file", async () => {
    const browser = new FakeBrowser(DESKTOP);
    await marked(browser, "h200", "int8");
    const { store } = browser.around;
    const other = new FakeBrowser({ ...DESKTOP, info: { vendor: "another" } });
    const pack = await of(["default", "h200"]);
    const options = { fetch: pack.fetch, measure: false };
    expect((await choose(AT, undefined, options, { ...other.around, store })).name).toBe("h200");
    expect((await choose(AT, undefined, options, { ...browser.around, userAgent: "Fake/2" })).name).toBe("h200");
    expect((await again(browser, await of(["default", "f16"]), { measure: false })).name).toBe("f16");
  });

  it("by a measurement is kept, and an error says so where all were", async () => {
    const pack = await of(["default", "h200"]);
    const browser = new FakeBrowser({ ...DESKTOP, wrong: { h200: ["decode_kernel"], default: ["decode_kernel"] } });
    await expect(again(browser, pack)).rejects.toThrow("computes wrong results");
    await expect(again(browser, pack)).rejects.toThrow("wrong on this device before");
    expect(browser.opened).toHaveLength(1);
    expect((await again(browser, pack, { library: "h200" })).name).toBe("h200");
  });

  it("makes of the others, where time is up, the choice that asks least, or one that has passed", async () => {
    const hardware = { ...DESKTOP, compileMs: 300, wrong: { h200: ["decode_kernel"] } };
    const pack = await FakePackage.of();
    const browser = new FakeBrowser(hardware);
    expect(await again(browser, pack)).toMatchObject({
      name: "default",
      why: expect.stringMatching(/^asks least.*h200/),
    });
    const second = new FakeBrowser(hardware);
    const { store, userAgent } = second.around;
    await (await PassedTests.open({ digest: "f16" }, info, userAgent, store))!.add();
    expect(await again(second, pack)).toMatchObject({ name: "f16", why: expect.stringContaining("right here before") });
  });

  it("is none that the device had no memory for, or that was not asked before the device was lost", async () => {
    const pack = await of(["default", "h200"]);
    const full = new FakeBrowser({ ...DESKTOP, refuses: { h200: "Out of memory", default: "Out of memory" } });
    expect((await again(full, pack)).name).toBe("h200");
    const timed = await again(new FakeBrowser({ ...DESKTOP, isFull: true }), pack);
    expect(timed.measured).toEqual(
      ["h200", "default"].map((name) => ({ name, problem: "it could not be timed: out of memory" })),
    );
    const lost = new FakeBrowser({ ...DESKTOP, loses: "h200" });
    const { name, why, measured } = await again(lost, pack);
    expect([name, measured]).toEqual(["default", [{ name: "h200", problem: "the device was lost" }]]);
    expect(why).toContain("the device was lost");
    for (const { kept } of [full, lost]) expect([...kept.keys()].filter((key) => key.includes("wrong"))).toEqual([]);
    const refused = new FakeBrowser({ ...DESKTOP, refuses: { h200: "no such type" } });
    expect((await again(refused, pack)).name).toBe("default");
    expect([...refused.kept.keys()].filter((key) => key.includes("wrong"))).toHaveLength(1);
  });
});
