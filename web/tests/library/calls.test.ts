import { beforeEach, describe, expect, it } from "vitest";
import { Calls, dtype, int, NOTHING, WEBGPU_DEVICE } from "../../src/library/calls";
import { type FakeLibrary, fakeLibrary, OBJECT } from "../fake_library";

let fake: FakeLibrary;
let calls: Calls;
beforeEach(() => {
  fake = fakeLibrary();
  calls = Calls.of(fake.library);
});

describe("arguments", () => {
  it("are numbers of two words, with their sign", () => {
    expect(int(5)).toEqual([1, 5, 0]);
    expect(int(-5)).toEqual([1, -5, -1]);
  });

  it("name a dtype by code, bits and one lane", () => {
    expect(dtype("float32")).toEqual([5, 0x0001_20_02]);
    expect(dtype("int32")).toEqual([5, 0x0001_20_00]);
    expect(dtype("uint8")).toEqual([5, 0x0001_08_01]);
    expect(() => dtype("bfloat16")).toThrow("dtype `bfloat16`");
  });

  it("have an object's own type number", () => {
    const handle = fake.object(123);
    expect(calls.object(handle)).toEqual([123, handle]);
  });
});

describe("a call", () => {
  it("hands over numbers, objects and texts, and returns what came", () => {
    const made = fake.object();
    const handle = fake.define("f", () => made);
    expect(calls.call(handle, [int(7), "first", calls.object(made), "second"])).toEqual({ type: OBJECT, handle: made });
    expect(fake.calls).toEqual([["f", 7, "first", made, "second"]]);
  });

  it("that fails is an error", () => {
    const handle = fake.define("f", () => {
      throw new Error("inside");
    });
    expect(() => calls.call(handle, [])).toThrow("the library's function failed");
  });

  it("takes no more text than there is room for", () => {
    const handle = fake.define("f", () => 0);
    expect(() => calls.call(handle, ["x".repeat(70_000)])).toThrow("too many arguments");
    expect(fake.calls).toEqual([]);
  });
});

describe("functions", () => {
  it("of the runtime are found by their whole name, once", () => {
    const handle = fake.define("runtime.f", () => 0);
    fake.define("runtime.fg", () => 0);
    expect(calls.global("runtime.f")).toBe(handle);
    expect(calls.global("runtime.f")).toBe(handle);
    expect(() => calls.global("runtime")).toThrow("the library has no function `runtime`");
  });

  it("of the model come from its virtual machine", () => {
    expect(() => calls.compiled("embed")).toThrow("virtual machine is not known");
    fake.library.machine = fake.object();
    const handle = fake.define("embed", () => 0);
    expect(calls.compiled("embed")).toBe(handle);
    expect(calls.compiled("embed")).toBe(handle);
    expect(fake.calls).toEqual([["ffi.ModuleGetFunction", fake.library.machine, "embed", 1]]);
    expect(() => calls.compiled("other")).toThrow("the library has no function `other`");
  });
});

describe("tensors", () => {
  it("are made on the device, and their shape is let go", () => {
    const tensor = calls.tensor([3, 40], "float32");
    const [[, ...sizes], [, shape, type]] = fake.calls as unknown as [number[], number[]];
    expect(sizes).toEqual([3, 40]);
    expect(type).toBe(dtype("float32")[1]);
    expect(fake.released).toEqual([shape]);
    expect(calls.width(tensor)).toBe(40);
    expect([WEBGPU_DEVICE[1], NOTHING[0]]).toEqual([15, 0]);
  });

  it("are seen in another shape", () => {
    const tensor = calls.tensor([12], "float32");
    const view = calls.view(tensor, [3, 4], "float32");
    expect(calls.width(view)).toBe(4);
    expect(fake.library.bufferOf(view)).toBe(fake.library.bufferOf(tensor));
  });

  it("of an array keep their order", () => {
    const [a, b] = [fake.object(), fake.object()];
    const array = calls.array([a, b]);
    expect([calls.item(array, 0), calls.item(array, 1)]).toEqual([a, b]);
  });
});
