import { afterEach, describe, expect, it, vi } from "vitest";
import { choose } from "../../src/choose/choose";
import { forgetChoices } from "../../src/choose/kept_choice";
import { LibraryFile } from "../../src/choose/library_file";
import type { Device } from "../../src/gpu/device";
import { DeviceTest } from "../../src/selftest/device_test";
import { FakeBrowser, FakePackage, libraryFile, SET, type FakeHardware } from "../fake_choice";

const AT = "https://example.org/model/resolve/main/";
const LIBRARIES = SET.filter(({ name }) => ["default", "f16"].includes(name));
const HARDWARE: FakeHardware = { features: ["shader-f16"], subgroups: [32, 32] };

/** The test of a model's load, of one kernel after the other. */
async function load(browser: FakeBrowser, name: string): Promise<void> {
  const { adapter } = browser;
  const device = await adapter.requestDevice({ requiredFeatures: [] });
  const driven = { device, adapter: adapter.info, native: { ...device, ...device.queue } } as unknown as Device;
  const test = DeviceTest.of(new LibraryFile(libraryFile(name)).metadata()!, driven, () => forgetChoices())!;
  for (const kernel of ["decode", "attend", "prompt"]) {
    const pipeline = { library: name, entry: `${kernel}_kernel` } as unknown as GPUComputePipeline;
    await test.check(`${kernel}_kernel`, pipeline, [] as unknown as GPUBindGroupLayout);
  }
}

afterEach(() => vi.unstubAllGlobals());

describe("a library that a model's load finds wrong", () => {
  it("is not chosen again until it passes", async () => {
    const pack = await FakePackage.of(LIBRARIES);
    const right = new FakeBrowser(HARDWARE);
    const { around } = right;
    vi.stubGlobal("caches", around.store);
    vi.stubGlobal("navigator", { userAgent: around.userAgent });
    const chosen = async () => (await choose(AT, undefined, { fetch: pack.fetch, measure: false }, around)).name;
    expect(await chosen()).toBe("f16");
    const wrong = new FakeBrowser({ ...HARDWARE, wrong: { f16: ["prompt_kernel"] } });
    await expect(load(wrong, "f16")).rejects.toThrow("computes wrong results");
    expect(await chosen()).toBe("default");
    await load(right, "default");
    expect(await chosen()).toBe("default");
    await load(right, "f16");
    expect(await chosen()).toBe("f16");
  });
});
