// Calls of the module's own into a library, by TVM's C interface.
import type { Handle } from "./abi";
import type { Library, Value } from "./library";

const TYPES = { none: 0, int: 1, bool: 2, dtype: 5, device: 6, text: 8 } as const;
const WEBGPU = 15;
const CPU = 1;
const CODES = { int: 0, uint: 1, float: 2 } as const;
const ANY_WORDS = 4;
const OBJECT_TYPE_BYTE = 8; // of an object's header: its type number
const DIMENSIONS_BYTE = 36; // of a tensor: their number, its dtype, and where they are
const MOST_BYTES = 65_536;

/** An argument: its type number and two words. */
type Argument = readonly [type: number, low: number, high?: number];

export const int = (value: number): Argument => [TYPES.int, value, value < 0 ? -1 : 0];
export const NOTHING: Argument = [TYPES.none, 0];
export const WEBGPU_DEVICE: Argument = [TYPES.device, WEBGPU, 0];
export const CPU_DEVICE: Argument = [TYPES.device, CPU, 0];

export function dtype(name: string): Argument {
  const [, code, bits] = /^(int|uint|float)(\d+)$/.exec(name) ?? [];
  if (!code) throw new Error(`dtype \`${name}\`: expected an integer or float of a library`);
  return [TYPES.dtype, CODES[code as keyof typeof CODES] | (Number(bits) << 8) | (1 << 16)];
}

export class Calls {
  private static readonly made = new WeakMap<Library, Calls>();
  private readonly functions = new Map<string, Handle>();
  private readonly compiledFunctions = new Map<string, Handle>();
  private address = 0;

  /** Those of a library: memory for arguments is taken once. */
  static of(library: Library): Calls {
    const found = Calls.made.get(library) ?? new Calls(library);
    Calls.made.set(library, found);
    return found;
  }

  private constructor(private readonly library: Library) {}

  /** An object as an argument. */
  object(handle: Handle): Argument {
    return [this.library.copyOut(handle + OBJECT_TYPE_BYTE, 1)[0]!, handle];
  }

  /** Result of a call; what it refers to is the caller's. */
  call(handle: Handle, args: readonly (Argument | string)[]): Value {
    const { library } = this;
    this.address ||= library.exports.TVMWasmAllocSpace(MOST_BYTES);
    const result = this.address;
    const first = result + ANY_WORDS * 4;
    let free = first + args.length * ANY_WORDS * 4;
    const words = new Int32Array(ANY_WORDS * (args.length + 1));
    for (const [i, argument] of args.entries()) {
      const [type, low, high] = typeof argument === "string" ? [TYPES.text, free] : argument;
      if (typeof argument === "string") free = this.writeText(free, argument);
      words.set([type, 0, low, high ?? 0], ANY_WORDS * (i + 1));
    }
    library.copyIn(result, words);
    if (library.exports.TVMFFIFunctionCall(handle, first, args.length, result) !== 0)
      throw new Error(`the library's ${this.nameOf(handle)} failed`);
    return library.value(result);
  }

  /** A function that TVM's runtime knows by name. */
  global(name: string): Handle {
    let found = this.functions.get(name);
    if (found === undefined) {
      const { library } = this;
      this.address ||= library.exports.TVMWasmAllocSpace(MOST_BYTES);
      const at = this.address;
      const end = this.writeText(at + 16, name);
      library.copyIn(at, Int32Array.of(at + 16, end - 1 - (at + 16), 0));
      library.exports.TVMFFIFunctionGetGlobal?.(at, at + 8);
      found = library.copyOut(at + 8, 1)[0]! >>> 0;
      if (found === 0) throw new Error(`the library has no function \`${name}\``);
      this.functions.set(name, found);
    }
    return found;
  }

  /** A function of the model. */
  compiled(name: string): Handle {
    const { machine } = this.library;
    const known = this.compiledFunctions.get(name);
    if (known !== undefined) return known;
    if (machine === 0) throw new Error("the library's virtual machine is not known");
    const asked = [this.object(machine), name, [TYPES.bool, 1] as Argument];
    const { handle } = this.call(this.global("ffi.ModuleGetFunction"), asked);
    if (handle === 0) throw new Error(`the library has no function \`${name}\``);
    this.compiledFunctions.set(name, handle);
    return handle;
  }

  /** A tensor on the device, or where it is said, whose contents are undefined. */
  tensor(shape: readonly number[], type: string, where: Argument = WEBGPU_DEVICE): Handle {
    const sizes = this.shape(shape);
    const args = [this.object(sizes), dtype(type), where, NOTHING];
    const { handle } = this.call(this.global("runtime.TVMTensorAllocWithScope"), args);
    this.release(sizes);
    return handle;
  }

  /** The same elements in another shape. */
  view(tensor: Handle, shape: readonly number[], type: string): Handle {
    const sizes = this.shape(shape);
    const args = [this.object(tensor), this.object(sizes), dtype(type), int(0)];
    const { handle } = this.call(this.global("runtime.TVMTensorCreateView"), args);
    this.release(sizes);
    return handle;
  }

  array(objects: readonly Handle[]): Handle {
    return this.call(
      this.global("ffi.Array"),
      objects.map((object) => this.object(object)),
    ).handle;
  }

  /** The last dimension of a tensor: a buffer of the runtime's pool may be larger than what lies in it. */
  width(tensor: Handle): number {
    return this.sizes(tensor).at(-1)!;
  }

  /** The dimensions of a tensor. */
  sizes(tensor: Handle): number[] {
    const [dimensions, , shape] = this.library.copyOut(tensor + DIMENSIONS_BYTE, 3);
    const words = this.library.copyOut(shape! >>> 0, 2 * dimensions!);
    return Array.from({ length: dimensions! }, (_, i) => words[2 * i]!);
  }

  /** Bytes of an element of a tensor. */
  elementBytes(tensor: Handle): number {
    const [, type] = this.library.copyOut(tensor + DIMENSIONS_BYTE, 2);
    return ((type! >>> 8) & 0xff) / 8;
  }

  item(array: Handle, index: number): Handle {
    return this.call(this.global("ffi.ArrayGetItem"), [this.object(array), int(index)]).handle;
  }

  release(...objects: readonly Handle[]): void {
    for (const object of objects) this.library.exports.TVMFFIObjectDecRef(object);
  }

  private shape(sizes: readonly number[]): Handle {
    return this.call(this.global("ffi.Shape"), sizes.map(int)).handle;
  }

  private nameOf(handle: Handle): string {
    const [name] = [...this.functions, ...this.compiledFunctions].find(([, known]) => known === handle) ?? [];
    return name === undefined ? "function" : `function \`${name}\``;
  }

  /** Writes a text and a zero byte; where the next one may begin. */
  private writeText(address: number, text: string): number {
    const bytes = new TextEncoder().encode(`${text}\0`);
    if (address + bytes.length > this.address + MOST_BYTES) throw new Error("too many arguments");
    new Uint8Array(this.library.exports.memory.buffer).set(bytes, address);
    return address + bytes.length;
  }
}
