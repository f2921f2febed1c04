import { describe, expect, it, vi } from "vitest";
import { asUserError, ContextFull, EngineLost } from "../src/engine/failures";
import { inWords, UserError } from "../src/package/user_error";

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
    expect(asUserError(new Error("something else"), true).message).toBe("The model does not start: something else");
    expect(asUserError("RuntimeError: unreachable").message).toBe("The model stopped: unreachable");
  });

  it.each([
    "TypeError: Cannot read properties of undefined (reading 'roles')",
    "TypeError: undefined is not an object (evaluating 'a.b')",
    "RangeError: Invalid typed array length: -8",
    'SyntaxError: Unexpected token < in JSON at position 0, "<!doctype"',
    "ReferenceError: x is not defined",
    "CompileError: WebAssembly.instantiate(): expected magic word 00 61 73 6d, found 7b 7d",
    "LinkError: WebAssembly.instantiate(): Import #0 module=env is not an object",
  ])("never shows a program's own words: %s", (text) => {
    vi.spyOn(console, "error").mockImplementation(() => undefined);
    for (const starting of [true, false]) {
      const { message, hint } = asUserError(text, starting);
      expect(message + hint).not.toMatch(/TypeError|undefined|RangeError|SyntaxError|magic|Import|ReferenceError/);
      expect(hint).toContain("console has more");
      expect(console.error).toHaveBeenCalledWith(text);
    }
    const error = new TypeError("Cannot read properties of undefined");
    expect(asUserError(error, true).message).not.toContain("undefined");
  });
});

describe("an error that nobody foresaw", () => {
  it("is told in words, and an exception of the browser's in its own", () => {
    vi.spyOn(console, "error").mockImplementation(() => undefined);
    expect(inWords(new TypeError("x is undefined")).message).toMatch(/no words/);
    expect(inWords(undefined)).toBeInstanceOf(UserError);
    expect(inWords(new DOMException("Storage is full.", "QuotaExceededError")).message).toBe("Storage is full.");
    const own = new UserError("a", "b");
    expect(inWords(own)).toBe(own);
  });

  it("quotes no sign that turns the words around it, and no book", () => {
    expect(new UserError("a \u202eb\u2066", "").message).toBe("a \ufffdb\ufffd");
    expect(new UserError("x".repeat(1e6), "").message.length).toBe(2001);
  });
});
