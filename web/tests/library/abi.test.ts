import { describe, expect, it } from "vitest";
import { ABI, readInterface, roleOf } from "../../src/library/abi";
import { MADE_FOR } from "../../src/library/versions";
import { INTERFACE } from "../fake_library";

const ADDRESS = 64;

/** The exports of a library that describes itself with `text`: every function but those that it lacks. */
function exportsOf(text: string, ...lacks: string[]): WebAssembly.Exports {
  const memory = { buffer: new ArrayBuffer(4096) };
  new Uint8Array(memory.buffer).set(new TextEncoder().encode(`${text}\0 more`), ADDRESS);
  const known: Record<string, unknown> = { memory, gemma4_driver_interface: () => ADDRESS };
  return new Proxy({}, { get: (_, name: string) => (lacks.includes(name) ? undefined : (known[name] ?? (() => 0))) });
}

const read = (changes: object) => readInterface(exportsOf(JSON.stringify({ ...INTERFACE, ...changes })));

describe("readInterface", () => {
  it("reads a library's description", () => {
    expect(read({})).toEqual(INTERFACE);
    expect(roleOf(INTERFACE, "softmax_with_temperature")).toBe("softmax");
    expect(roleOf(INTERFACE, "_metadata")).toBe("metadata");
    expect(roleOf(INTERFACE, "prefill_tokens")).toBe("prefill");
    expect(roleOf(INTERFACE, "prefill")).toBeUndefined();
  });

  it("names what it cannot use", () => {
    expect(readInterface({})).toMatch(/^the library has no driver interface/);
    expect(read({ abi: ABI + 1 })).toBe(
      `the library's driver interface has version ${ABI + 1}, this module understands ${ABI}`,
    );
    expect(read({ tvm: "9.9.9" })).toBe(`the library holds TVM 9.9.9, this module was made for ${MADE_FOR.tvm}`);
    expect(readInterface(exportsOf("{"))).toMatch(/cannot be read/);
    expect(readInterface(exportsOf("null"))).toMatch(/has version undefined/);
    const fewer = exportsOf("{}", "gemma4_driver_wrote", "TVMFFIFunctionCall");
    expect(readInterface(fewer)).toBe("the library lacks TVMFFIFunctionCall, gemma4_driver_wrote");
  });

  it.each([
    { any_bytes: "16" },
    { types: undefined },
    { types: { int: 1 } },
    { types: { ...INTERFACE.types, tensor: null } },
    { functions: { decode: "decode" } },
    { functions: undefined },
  ])("refuses a damaged one: %o", (changes) => {
    expect(read(changes)).toBe("the library's driver interface is damaged");
  });
});
