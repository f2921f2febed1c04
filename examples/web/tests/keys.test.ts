import { describe, expect, it } from "vitest";
import { isComposing } from "../src/view/keys";

describe("isComposing", () => {
  it("knows the Enter of an input method in every browser", () => {
    expect(isComposing({ isComposing: true, keyCode: 229 })).toBe(true); // Chromium
    expect(isComposing({ isComposing: true, keyCode: 13 })).toBe(true); // Firefox
    expect(isComposing({ isComposing: false, keyCode: 229 })).toBe(true); // Safari
    expect(isComposing({ isComposing: false, keyCode: 13 })).toBe(false); // Enter itself
  });
});
