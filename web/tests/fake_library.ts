// A library whose functions are those of a test: TVM's C interface over a memory of its own.
import { ABI, type DriverExports, type Handle, type Interface } from "../src/library/abi";
import { BufferState } from "../src/gpu/buffers";
import type { Device } from "../src/gpu/device";
import { Library } from "../src/library/library";
import { MADE_FOR } from "../src/library/versions";
import { fakeBuffer } from "./fake_device";

export const OBJECT = 70;
export const TENSOR = 71;
const TEXT = 8;
const ANY_BYTES = 16;

/** What a library says of itself. */
export const INTERFACE: Interface = {
  abi: ABI,
  tvm: MADE_FOR.tvm,
  functions: {
    prefill: "prefill_tokens",
    decode: "decode",
    softmax: "softmax_with_temperature",
    sample: "sample_with_top_p",
    metadata: "_metadata",
  },
  types: { int: 1, float: 3, raw_string: 8, string: 65, function: 66, tensor: 67, object_from: 64 },
  any_bytes: 16,
};

/** An argument: a text, a number, or an object by its address. */
export type Given = string | number;
type Answer = (given: readonly Given[]) => Handle;

export interface FakeLibrary {
  readonly library: Library;
  /** Functions that were called, with what they were given. */
  readonly calls: (readonly [name: string, ...given: Given[]])[];
  /** Objects that were let go, in order. */
  readonly released: Handle[];
  /** Buffers of tensors. */
  readonly buffers: Map<Handle, BufferState>;
  /** Lets a function of this name answer; undefined takes it away. */
  define(name: string, answer: Answer): Handle;
  object(type?: number): Handle;
  tensor(shape: readonly number[]): Handle;
  array(objects: readonly Handle[]): Handle;
}

/** With the functions of TVM's runtime that the module calls. `device` is its device. */
export function fakeLibrary(device?: Device): FakeLibrary {
  const memory = new WebAssembly.Memory({ initial: 8 });
  const words = () => new Int32Array(memory.buffer);
  let free = 1024;
  const take = (bytes: number) => {
    free += 8 - (free % 8);
    const at = free;
    free += bytes;
    return at;
  };
  const names = new Map<Handle, string>();
  const answers = new Map<string, Answer>();
  const buffers = new Map<Handle, BufferState>();
  const calls: FakeLibrary["calls"] = [];
  const released: Handle[] = [];
  const shapes = new Map<Handle, readonly number[]>();
  const items = new Map<Handle, readonly Handle[]>();
  const text = (at: number, length?: number) => {
    const bytes = new Uint8Array(memory.buffer);
    return new TextDecoder().decode(bytes.slice(at, length === undefined ? bytes.indexOf(0, at) : at + length));
  };
  const object = (type = OBJECT) => {
    const at = take(64);
    words()[(at + 8) >> 2] = type;
    return at;
  };
  const array = (objects: readonly Handle[]) => {
    const made = object();
    items.set(made, objects);
    return made;
  };
  const tensor = (shape: readonly number[]) => {
    const bytes = 4 * shape.reduce((all, size) => all * size, 1);
    const at = object(TENSOR);
    const sizes = take(8 * shape.length);
    for (const [i, size] of shape.entries()) words()[(sizes >> 2) + 2 * i] = size;
    words().set([shape.length, 0, sizes], (at + 36) >> 2);
    const state = new BufferState(fakeBuffer(bytes));
    state.handle = at;
    buffers.set(at, state);
    return at;
  };
  const define = (name: string, answer: Answer) => {
    answers.set(name, answer);
    const known = [...names].find(([, each]) => each === name)?.[0];
    const handle = known ?? object();
    names.set(handle, name);
    return handle;
  };
  const handleOf = (name: string) => [...names].find(([, each]) => each === name)?.[0] ?? 0;

  define("ffi.Shape", (given) => {
    const made = object();
    shapes.set(made, given as number[]);
    return made;
  });
  define("ffi.Array", (given) => array(given as Handle[]));
  define("ffi.ArrayGetItem", ([array, index]) => items.get(array as Handle)![index as number]!);
  define("ffi.ModuleGetFunction", ([, name]) => handleOf(name as string));
  define("runtime.TVMTensorAllocWithScope", ([shape]) => tensor(shapes.get(shape as Handle)!));
  define("runtime.TVMTensorCreateView", ([of, shape]) => {
    const made = tensor(shapes.get(shape as Handle)!);
    buffers.set(made, buffers.get(of as Handle)!);
    return made;
  });

  const exports = {
    memory,
    TVMWasmAllocSpace: take,
    TVMFFIFunctionGetGlobal: (name: number, out: number) => {
      const [address, length] = words().slice(name >> 2, (name >> 2) + 2);
      words()[out >> 2] = handleOf(text(address!, length));
      return 0;
    },
    TVMFFIFunctionCall: (handle: Handle, args: number, count: number, result: number) => {
      const given = Array.from({ length: count }, (_, i) => {
        const [type, , value] = words().slice((args + ANY_BYTES * i) >> 2);
        return type === TEXT ? text(value!) : value!;
      });
      const name = names.get(handle)!;
      calls.push([name, ...given]);
      let made: Handle;
      try {
        made = answers.get(name)!(given);
      } catch (error) {
        if (error instanceof WebAssembly.RuntimeError) throw error;
        return -1;
      }
      words().set([OBJECT, 0, made, 0], result >> 2);
      return 0;
    },
    TVMFFIObjectIncRef: () => 0,
    TVMFFIObjectDecRef: (handle: Handle) => {
      released.push(handle);
      return 0;
    },
  } as unknown as DriverExports;
  const host = { enter: () => undefined, gateOf: () => undefined, driverOf: () => undefined };
  const library = new Library(exports, {} as Interface, host);
  library.device = device;
  library.bufferOf = (handle) => buffers.get(handle);
  return { library, calls, released, buffers, define, object, tensor, array };
}
