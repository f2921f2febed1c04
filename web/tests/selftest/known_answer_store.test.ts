import { describe, expect, it } from "vitest";
import { PassedTests } from "../../src/selftest/known_answer_store";

const DEVICE = { vendor: "maker", architecture: "arch", device: "", description: "Test GPU" };
const DAY = 24 * 3600 * 1000;

/** The part of the Cache API that is used. */
function store() {
  const kept = new Map<string, Response>();
  const cache = {
    match: async (key: string) => kept.get(key)?.clone(),
    put: async (key: string, response: Response) => void kept.set(key, response),
    delete: async (key: string) => kept.delete(key),
    keys: async () => [...kept.keys()],
  };
  return { kept, store: { open: async () => cache as unknown as Cache } };
}

describe("passed tests", () => {
  it("are kept for this package, device and browser", async () => {
    const { store: caches } = store();
    const open = async (digest: string, device: object = {}, agent = "Browser 1") =>
      (await PassedTests.open({ digest }, { ...DEVICE, ...device }, agent, caches))!;
    expect(await (await open("a")).has()).toBe(false);
    await (await open("a")).add();
    expect(await (await open("a")).has()).toBe(true);
    expect(await (await open("b")).has()).toBe(false);
    expect(await (await open("a", { description: "Other GPU" })).has()).toBe(false);
    expect(await (await open("a", {}, "Browser 2")).has()).toBe(false);
    await (await open("a")).forget();
    expect(await (await open("a")).has()).toBe(false);
  });

  it("are forgotten after a week, as the driver may be another one", async () => {
    const passed = (await PassedTests.open({ digest: "a" }, DEVICE, "", store().store))!;
    await passed.add(0);
    expect(await passed.has(6 * DAY)).toBe(true);
    expect(await passed.has(8 * DAY)).toBe(false);
    await passed.add(8 * DAY);
    expect(await passed.has(9 * DAY)).toBe(true);
  });

  it("of a clock that was set back, or of damaged entries, do not count", async () => {
    const { kept, store: caches } = store();
    const passed = (await PassedTests.open({ digest: "a" }, DEVICE, "", caches))!;
    await passed.add(5 * DAY);
    expect(await passed.has(DAY)).toBe(false);
    for (const key of kept.keys()) kept.set(key, new Response("no date"));
    expect(await passed.has()).toBe(false);
  });

  it("are few", async () => {
    const { kept, store: caches } = store();
    for (let n = 0; n < 40; n++) await (await PassedTests.open({ digest: String(n) }, DEVICE, "", caches))!.add();
    expect(kept.size).toBe(32);
    expect(await (await PassedTests.open({ digest: "39" }, DEVICE, "", caches))!.has()).toBe(true);
    expect(await (await PassedTests.open({ digest: "0" }, DEVICE, "", caches))!.has()).toBe(false);
  });

  it("cannot be kept everywhere", async () => {
    const refusing = { open: async () => Promise.reject(new DOMException("private window", "SecurityError")) };
    expect(await PassedTests.open({ digest: "a" }, DEVICE, "", refusing)).toBeUndefined();
    expect(await PassedTests.open({ digest: "a" }, DEVICE, "", undefined)).toBeUndefined();
    const full = {
      match: async () => undefined,
      delete: async () => false,
      put: async () => Promise.reject(new Error("full")),
    };
    const passed = (await PassedTests.open({ digest: "a" }, DEVICE, "", {
      open: async () => full as unknown as Cache,
    }))!;
    await passed.add();
    expect(await passed.has()).toBe(false);
  });
});
