// A choice over several starts: what noise does to it, what there was no time for, and what is there without a network.
import { afterEach, describe, expect, it, vi } from "vitest";
import { choose } from "../../src/choose/choose";
import { MEASURED_DEVICE, openMeasured } from "../../src/choose/measured_device";
import { counts } from "../../src/stats";
import { FakeBrowser, FakePackage, type FakeHardware } from "../fake_choice";
import { fakeTimedDevice } from "../fake_timer";

const AT = "https://example.org/model/resolve/main/";
const DESKTOP: FakeHardware = {
  features: ["shader-f16", "subgroups"],
  languageFeatures: ["packed_4x8_integer_dot_product"],
  subgroups: [32, 32],
  hasClock: true,
};

async function visits(hardware: FakeHardware) {
  const browser = new FakeBrowser({ ...DESKTOP, ...hardware });
  const pack = await FakePackage.of();
  const visit = () => choose(AT, undefined, { fetch: pack.fetch }, browser.around);
  return { browser, pack, visit };
}

const names = ({ measured }: { measured: { name: string }[] }) => measured.map(({ name }) => name);

describe("of libraries that are timed on a device that others use, too", () => {
  // The first two launches of each are its check.
  it("the fastest by the median is taken", async () => {
    const woken = [90, 90, 900, 90, 90, 700, 90, 90];
    const lucky = [120, 120, 120, 120, 10, 120, 120, 120];
    const { visit } = await visits({ speed: { h200: 200, subgroups: woken, int8: lucky, f16: 200 } });
    expect(await visit()).toMatchObject({ name: "subgroups", why: expect.stringMatching(/^the fastest here: 270 us/) });
  });

  it("of equally fast ones that which is expected to be faster is", async () => {
    const tied = await visits({ speed: { h200: 100, subgroups: 97, int8: 200, f16: 96 } });
    const { name, why } = await tied.visit();
    expect([name, why]).toEqual(["h200", "as fast as any here: 300 us (subgroups 291 us, int8 600 us, f16 288 us)"]);
    const { visit } = await visits({ speed: { h200: 100, subgroups: 90, int8: 200, f16: 91 } });
    expect((await visit()).name).toBe("subgroups");
  });

  it("a tie does not hide that a library is wrong", async () => {
    const { visit } = await visits({ speed: { h200: 100, subgroups: 99 }, wrong: { h200: ["prompt_kernel"] } });
    expect((await visit()).name).toBe("subgroups");
  });
});

describe("libraries for which there was no time", () => {
  it("are measured at the next start, beside the one that was chosen", async () => {
    const { browser, pack, visit } = await visits({ compileMs: 90, speed: { h200: 200, subgroups: 150, int8: 20 } });
    const first = await visit();
    expect([first.name, names(first)]).toEqual(["subgroups", ["h200", "subgroups", "int8"]]);
    browser.hardware.compileMs = 1; // browsers keep compiled kernels
    const second = await visit();
    expect([second.name, names(second)]).toEqual(["int8", ["subgroups", "int8", "f16"]]);
    pack.asked.length = 0;
    const third = await visit();
    expect([third.name, third.why, names(third)]).toEqual(["int8", second.why, []]);
    expect(pack.asked).toEqual(["provenance.json"]);
    expect(browser.opened).toHaveLength(2);
  });

  it("do not take its place untimed, nor where their files do not come", async () => {
    const { browser, pack, visit } = await visits({ compileMs: 90, speed: { h200: 20, subgroups: 150 } });
    const first = await visit();
    expect(first.name).toBe("h200");
    for (const file of ["model-int8.wasm", "model-f16.wasm"]) pack.files.delete(file);
    const second = await visit();
    expect([second.name, second.why, names(second)]).toEqual(["h200", expect.any(String), ["h200", "int8", "f16"]]);
    expect((await visit()).why).toBe(second.why);
    expect(browser.opened).toHaveLength(2);
    const other = await visits({ compileMs: 90, speed: { h200: 20, int8: 10 } });
    expect((await other.visit()).name).toBe("h200");
    other.browser.hardware.compileMs = 1;
    other.pack.files.delete("model-h200.wasm"); // whose time nobody knows now
    expect((await other.visit()).name).toBe("h200");
  });

  it("are chosen among where the one of the last start turns out wrong", async () => {
    const { browser, visit } = await visits({ compileMs: 90, speed: { subgroups: 50 } });
    expect((await visit()).name).toBe("subgroups");
    Object.assign(browser.hardware, { compileMs: 1, wrong: { subgroups: ["decode_kernel"] }, speed: { f16: 10 } });
    expect((await visit()).name).toBe("f16");
    const all = Object.fromEntries(["h200", "subgroups", "int8"].map((name) => [name, ["decode_kernel"]]));
    const other = await visits({ compileMs: 90 });
    expect((await other.visit()).name).toBe("h200");
    Object.assign(other.browser.hardware, { compileMs: 1, wrong: { ...all, f16: ["decode_kernel"] } });
    expect((await other.visit()).name).toBe("h200-f32");
  });

  it("are given up after some starts", async () => {
    const { browser, visit } = await visits({ compileMs: 300 });
    for (let start = 0; start < 6; start++) expect((await visit()).name).toBe("h200");
    expect(browser.opened).toHaveLength(4);
  });

  it("do not wait for one whose kernels never get ready, where the processor has cores for several", async () => {
    const { browser, pack } = await visits({ hangs: "h200", cores: 16, speed: { int8: 10 } });
    const around = { ...browser.around, now: () => performance.now() };
    const found = await choose(AT, undefined, { fetch: pack.fetch }, around);
    expect([found.name, names(found)]).toEqual(["int8", ["h200", "subgroups", "int8", "f16"]]);
    expect(found.measured[0]!.problem).toContain("no time left");
  });
});

describe("without a network", () => {
  const stored = ({ kept }: FakeBrowser, file: string) => kept.set(`webllm/wasm ${AT}${file}`, "");

  it("the library that was chosen is taken if it is stored, or else one that is and fits", async () => {
    const { browser, pack, visit } = await visits({ speed: { int8: 10 } });
    const { name, why } = await visit();
    expect(name).toBe("int8");
    pack.isReachable = false;
    expect(await visit()).toMatchObject({ name, why }); // the client may have it elsewhere
    stored(browser, "model-subgroups-4.wasm");
    stored(browser, "model.wasm");
    expect(await visit()).toMatchObject({ name: "subgroups-4", why: expect.stringContaining("stored here") });
    stored(browser, "model-int8.wasm");
    expect(await visit()).toMatchObject({ name, why });
    pack.isReachable = true;
    expect((await visit()).why).toBe(why);
    expect(browser.opened).toHaveLength(1);
  });

  it("none is taken that cannot run here, or is known to be wrong", async () => {
    const { browser, pack, visit } = await visits({ features: ["shader-f16"], wrong: { int8: ["decode_kernel"] } });
    expect((await visit()).name).toBe("f16");
    const reachable = pack.fetch;
    const get = (url: string) => (url.endsWith("int8.wasm") ? reachable(url) : Promise.reject(new TypeError("none")));
    stored(browser, "model-h200.wasm");
    stored(browser, "model-int8.wasm");
    stored(browser, "model.wasm");
    expect((await choose(AT, undefined, { fetch: get }, browser.around)).name).toBe("default");
  });

  it("one counts as stored that the caller's own way to files has", async () => {
    const { browser, pack, visit } = await visits({ speed: { int8: 10 } });
    await visit();
    const get = (url: string) => (/f16\.wasm$/.test(url) ? pack.fetch(url) : Promise.reject(new TypeError("none")));
    expect((await choose(AT, undefined, { fetch: get }, browser.around)).name).toBe("f16");
  });
});

describe("the device of a measurement", () => {
  afterEach(() => vi.unstubAllGlobals());

  it("has a name, by which the module leaves it alone", async () => {
    const { browser, visit } = await visits({});
    await visit();
    expect(browser.opened[0]!.label).toBe(MEASURED_DEVICE);
    const opened = [fakeTimedDevice(0), fakeTimedDevice(0)].map((device) => device.asDevice());
    const createBuffers = opened.map(({ createBuffer }) => createBuffer);
    const waiting = [...opened];
    const adapter = { features: new Set(["subgroups"]), info: {}, requestDevice: async () => waiting.shift() };
    vi.stubGlobal("navigator", { gpu: { requestAdapter: async () => adapter } });
    vi.stubGlobal("WebAssembly", { ...WebAssembly, instantiate: WebAssembly.instantiate });
    vi.resetModules();
    await import("../../src/fast");
    const found = (await navigator.gpu.requestAdapter())!;
    await found.requestDevice({ label: MEASURED_DEVICE, requiredFeatures: [] });
    await found.requestDevice({ label: "another" });
    const isWatched = opened.map(({ createBuffer }, index) => createBuffer !== createBuffers[index]);
    expect(isWatched).toEqual([false, true]);
  });

  it("is polled while a read of it waits, and no longer", async () => {
    vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "setInterval", "clearInterval", "performance"] });
    const timed = fakeTimedDevice(100);
    const adapter = { features: new Set(), requestDevice: async () => timed.asDevice() } as unknown as GPUAdapter;
    const device = (await openMeasured(adapter, { requiredFeatures: [] }))!;
    let took = 0;
    timed.work(20);
    void device.queue.onSubmittedWorkDone().then(() => (took = performance.now()));
    const begin = performance.now();
    await vi.advanceTimersByTimeAsync(200);
    expect(took - begin).toBeLessThan(30); // by the fake clock; the device's own timer ends a wait after 100
    const { polls } = counts;
    await vi.advanceTimersByTimeAsync(1000);
    expect(counts.polls).toBe(polls);
    timed.stop();
    vi.useRealTimers();
  });

  it("is polled in a tab that nobody sees, whose timers come too late", async () => {
    const timed = fakeTimedDevice(1e9);
    const adapter = { features: new Set(), requestDevice: async () => timed.asDevice() } as unknown as GPUAdapter;
    const device = (await openMeasured(adapter, { requiredFeatures: [] }))!;
    vi.stubGlobal("setTimeout", () => 0);
    await device.queue.onSubmittedWorkDone();
    timed.stop();
  });

  it("gives its times in such a tab, too", async () => {
    const { visit } = await visits({ speed: { h200: 200, int8: 20 } });
    vi.stubGlobal("setTimeout", () => 0);
    expect(await visit()).toMatchObject({ name: "int8", why: expect.stringMatching(/^the fastest here: 60 us/) });
  });
});
