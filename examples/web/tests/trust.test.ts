// Whose package a link names, and what a person agreed to.
import { describe, expect, it } from "vitest";
import { forgotten, isOwn, knows, placeOf, remembered } from "../src/package/trust";

const OWN = "https://page.example";
const [OLD, NEW] = ["0".repeat(64), "1".repeat(64)];
const STRANGER = { url: "https://other.example/p/", digest: OLD };
const nothing = { known: [], agreed: {}, accepted: [] };

it("a package is shown with whose it is, which no name of its own can change", () => {
  expect(placeOf({ url: `${OWN}/p/` }, OWN)).toBe("");
  expect(placeOf({ url: `${OWN}/p/`, redirectedTo: "other.example" }, OWN)).toBe("from other.example");
  expect(placeOf({ url: "https://other.example:8443/google/gemma/" }, OWN)).toBe("from other.example:8443");
  expect(placeOf({ url: "https://huggingface.co/you/m/resolve/main/" }, OWN)).toBe("from you/m on the hub");
});

describe("a link", () => {
  it.each([
    ["https://page.example/p/", true],
    ["https://page.example:8443/p/", false],
    ["http://page.example/p/", false],
    ["https://www.page.example/p/", false],
    ["https://page.example.other.example/p/", false],
    ["https://other.example/page.example/", false],
  ])("to %s opens by itself: %s", (url, wanted) => {
    expect(knows(nothing, { url, digest: OLD }, false, OWN)).toBe(wanted);
  });

  it("to an address of the page's host that leads on to another one is asked about", () => {
    const pack = { url: `${OWN}/p/`, digest: OLD, redirectedTo: "other.example" };
    expect(isOwn(pack, OWN)).toBe(false);
    expect(knows(nothing, pack, true, OWN)).toBe(false);
    expect(knows({ ...nothing, ...remembered(nothing, pack) }, pack, true, OWN)).toBe(true);
  });

  it("opens what the person agreed to, and asks where that has changed", () => {
    const kept = { ...nothing, ...remembered(nothing, STRANGER) };
    expect(knows(kept, STRANGER, true, OWN)).toBe(true);
    const changed = { ...STRANGER, digest: NEW };
    expect(knows(kept, changed, true, OWN)).toBe(false);
    expect(knows({ ...kept, accepted: [STRANGER.url] }, changed, true, OWN)).toBe(false);
    expect(knows({ ...kept, ...remembered(kept, changed) }, changed, true, OWN)).toBe(true);
    expect(knows(forgotten(kept, STRANGER.url), STRANGER, true, OWN)).toBe(false);
  });

  it("opens what was opened before hashes were kept", () => {
    expect(knows({ ...nothing, known: [STRANGER.url] }, STRANGER, true, OWN)).toBe(true);
    expect(knows({ ...nothing, accepted: [STRANGER.url] }, STRANGER, true, OWN)).toBe(true);
    expect(knows({ ...nothing, known: [STRANGER.url] }, { ...STRANGER, url: `${STRANGER.url}q/` }, true, OWN)).toBe(
      false,
    );
  });

  it("asks where the files are gone, whatever the settings still say, and where only files are there", () => {
    const kept = { ...remembered(nothing, STRANGER), accepted: [STRANGER.url] };
    expect(knows(kept, STRANGER, false, OWN)).toBe(false);
    expect(knows({ ...nothing, known: [STRANGER.url] }, STRANGER, false, OWN)).toBe(false);
    expect(knows(nothing, STRANGER, true, OWN)).toBe(false);
  });

  it("is remembered among the latest ones only", () => {
    let kept: Parameters<typeof knows>[0] = nothing;
    for (let i = 0; i < 150; i++) kept = { ...kept, ...remembered(kept, { ...STRANGER, url: `https://x.y/${i}/` }) };
    expect([kept.known.length, Object.keys(kept.agreed).length, kept.known[0]]).toEqual([100, 100, "https://x.y/149/"]);
  });
});
