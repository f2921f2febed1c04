import { describe, expect, it } from "vitest";
import { settingsFrom } from "../src/chat/settings";

describe("settings that were kept", () => {
  const defaults = settingsFrom({});

  it("come back as they were", () => {
    const kept = {
      ...defaults,
      theme: "dark",
      seed: 7,
      known: ["https://a.b/"],
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
    { more: 1 },
  ])("are the page's own where they are odd: %j", (kept) => expect(settingsFrom(kept)).toEqual(defaults));
});
