import { describe, expect, it } from "vitest";
import { asUserError, ContextFull, EngineLost } from "../src/engine/failures";

describe("what the client threw", () => {
  it("names a device that computes wrong results, and what to do", () => {
    const text =
      "Error: Test GPU computes wrong results with this package (norm, kernel rms_norm_kernel): 64 of 64 samples of `y` are off; " +
      "element 3 has to be 0.5, and is NaN.\nThe model would answer nonsense. Update the graphics driver and the browser.";
    const error = asUserError(new Error(text));
    expect(error.message).toMatch(/^Test GPU computes wrong results .* and is NaN\.$/);
    expect(error.hint).toBe("The model would answer nonsense. Update the graphics driver and the browser.");
    expect(error).not.toBeInstanceOf(EngineLost);
  });

  it("tells the other ends of a reply apart", () => {
    expect(asUserError("Error: Prompt tokens exceed context window size: 12")).toBeInstanceOf(ContextFull);
    expect(asUserError("Error: Device was lost: DeviceLost")).toBeInstanceOf(EngineLost);
    expect(asUserError("Error: something else").message).toContain("something else");
  });
});
