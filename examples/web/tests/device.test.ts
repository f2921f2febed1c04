// What the page finds out about the graphics device, in browsers that say more and less of it.
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { findDevice, NoWebGpu } from "../src/package/device";

const LIMITS = { maxBufferSize: 2 ** 31, maxStorageBufferBindingSize: 2 ** 30 };

function browser(adapter: object | null, gpu: object = {}): void {
  vi.stubGlobal("navigator", {
    userAgent: "Fake/1",
    maxTouchPoints: 0,
    gpu: { requestAdapter: async () => adapter, ...gpu },
  });
}

beforeEach(() => vi.stubGlobal("isSecureContext", true));
afterEach(() => vi.unstubAllGlobals());

describe("findDevice", () => {
  it("reads an adapter that tells everything", async () => {
    const info = { vendor: "maker", architecture: "arch", subgroupMinSize: 8, subgroupMaxSize: 32 };
    browser({ features: new Set(["subgroups"]), limits: LIMITS, info }, { wgslLanguageFeatures: new Set(["x"]) });
    const device = await findDevice(true);
    expect(device).toMatchObject({ name: "maker arch", isSoftware: false, subgroupMinSize: 8, isDriven: true });
    expect([...device.languageFeatures]).toEqual(["x"]);
  });

  it("reads one without `info`, memory, storage and language features", async () => {
    browser({ features: new Set(), limits: LIMITS });
    expect(await findDevice(false)).toMatchObject({
      name: "this graphics device",
      isSoftware: false,
      subgroupMinSize: 0,
      memoryBytes: 0,
      freeStorageBytes: undefined,
    });
  });

  it.each<[string, object]>([
    ["in its info", { info: { isFallbackAdapter: true } }],
    ["at itself, as before", { isFallbackAdapter: true }],
  ])("knows one in software that says so %s", async (_, said) => {
    browser({ features: new Set(), limits: LIMITS, ...said });
    expect((await findDevice(false)).isSoftware).toBe(true);
  });

  it("has ways out where there is none", async () => {
    browser(null);
    await expect(findDevice(false)).rejects.toThrow(NoWebGpu);
    vi.stubGlobal("isSecureContext", false);
    await expect(findDevice(false)).rejects.toThrow("https");
  });
});
