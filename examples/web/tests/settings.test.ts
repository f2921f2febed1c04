import { afterEach, describe, expect, it, vi } from "vitest";
import { loadSettings, saveSettings, settingsFrom } from "../src/chat/settings";

describe("settings that were kept", () => {
  const defaults = settingsFrom({});

  it("come back as they were", () => {
    const kept = {
      ...defaults,
      theme: "dark",
      seed: 7,
      known: ["https://a.b/"],
      agreed: { "https://a.b/": "0".repeat(64) },
      context: { "https://a.b/": 512 },
      fast: false,
    };
    expect(settingsFrom(JSON.parse(JSON.stringify(kept)))).toEqual(kept);
  });

  it.each([
    null,
    7,
    "x",
    [],
    { theme: "pink" },
    { known: "https://a.b/" },
    { known: [1] },
    { accepted: {} },
    { context: [512] },
    { context: { a: "512" } },
    { context: null },
    { lastPackage: 5 },
    { fast: "yes" },
    { temperature: "1" },
    { temperature: -1 },
    { topP: 0 },
    { maxTokens: 0.5 },
    { seed: -1 },
    { seed: 1e300 },
    { allowedMemory: -1 },
    { context: { a: 0 } },
    { context: { a: -512 } },
    { agreed: { a: 1 } },
    { agreed: [] },
    { beginnings: "much" },
    { more: 1 },
    { constructor: 1, toString: "x" },
    JSON.parse('{"__proto__": {"seed": 5}}'),
  ])("are the page's own where they are odd: %j", (kept) => {
    const settings = settingsFrom(kept);
    expect(settings).toEqual(defaults);
    expect(settings.seed).toBeUndefined(); // by way of a prototype neither
  });
});

describe("settings in two tabs", () => {
  afterEach(() => vi.unstubAllGlobals());

  it("are those that each changed: what one has read long ago does not come back", () => {
    const stored = new Map<string, string>();
    vi.stubGlobal("localStorage", {
      getItem: (key: string) => stored.get(key) ?? null,
      setItem: (key: string, value: string) => stored.set(key, value),
    });
    saveSettings({ known: ["https://a.b/"], theme: "dark", seed: 7 });
    saveSettings({ known: ["https://c.d/"] }); // in one tab
    saveSettings({ theme: "light", seed: undefined }); // in the other
    expect(loadSettings()).toEqual({ ...settingsFrom({}), known: ["https://c.d/"], theme: "light" });
  });
});
