// Launches without the client's runtime: from a kernel's arguments, as the library passes them, to a kept bind group.
//
// The runtime's own callback makes an array, objects, a pass and a bind group for each launch, 800 times for a prompt.
// What a kernel's arguments mean is taken from the description that the runtime itself reads, and believed only
// after a launch of the runtime's own came out the same.
import { type BufferState, stateOf } from "../gpu/buffers";
import type { Device } from "../gpu/device";
import type { Launch } from "../gpu/stream";
import { because } from "../stats";

/** Arguments in the order in which they are passed: buffers and scalars as the kernel takes them, then the grid. */
interface Form {
  readonly buffers: readonly number[];
  readonly scalars: readonly number[];
  /** By dimension of the grid (x, y, z): the argument, or -1 for 1. */
  readonly grid: readonly number[];
  readonly count: number;
}

interface Kernel {
  readonly form: Form;
  readonly pipeline: GPUComputePipeline;
  readonly layout: GPUBindGroupLayout;
  /** Launches issued before, by a hash of their arguments. */
  readonly kept: Map<number, Kept[]>;
}

/** A launch that was issued before, with the arguments that lead to it. */
interface Kept {
  readonly words: Int32Array;
  readonly launch: Launch;
}

/** The library's memory, as 32-bit words and as doubles. */
export interface Memory {
  readonly words: Int32Array;
  readonly doubles: Float64Array;
}

/** Type numbers of TVM's foreign function interface that arguments of kernels have. */
const NONE = 0,
  INT = 1,
  BOOL = 2,
  FLOAT = 3,
  POINTER = 4;
const MAX_KEPT = 8192;
const MAX_GRID = 65536;
const AXES = ["blockIdx.x", "blockIdx.y", "blockIdx.z"];

interface Description {
  readonly arg_types: readonly string[];
  readonly launch_param_tags: readonly string[];
}

/** The form of a kernel's arguments; undefined if it is of a kind that the module does not know. */
export function formOf({ arg_types: types, launch_param_tags: tags }: Description): Form | undefined {
  const axes = tags.filter((tag) => !tag.startsWith("paramWriteAccess:"));
  if (!types.every((type) => /^(handle|u?int(8|16|32)|float32)$/.test(type))) return undefined;
  if (!axes.every((tag) => /^(block|thread)Idx\.[xyz]$/.test(tag))) return undefined;
  const where = (isBuffer: boolean) => types.flatMap((type, i) => ((type === "handle") === isBuffer ? [i] : []));
  const grid = AXES.map((axis) => axes.lastIndexOf(axis)).map((i) => (i < 0 ? -1 : types.length + i));
  return { buffers: where(true), scalars: where(false), grid, count: types.length + axes.length };
}

export class Kernels {
  private readonly forms = new Map<string, Form>();
  /** By the runtime's number of the callback. */
  private readonly known = new Map<number, Kernel>();
  private keptCount = 0; // an upper bound: of kernels that were forgotten, too
  private words = new Int32Array(16);
  private readonly float = new Float32Array(1);
  private readonly floatBits = new Int32Array(this.float.buffer);

  constructor(
    private readonly device: () => Pick<Device, "groups" | "kernelNames">,
    private readonly bufferAt: (handle: number) => GPUBuffer | undefined,
  ) {}

  /** Reads the runtime's description of a library's kernels. */
  describe(text: string): void {
    try {
      for (const [name, description] of Object.entries(JSON.parse(text) as Record<string, Description>)) {
        const form = formOf(description);
        if (form) this.forms.set(name, form);
      }
    } catch (error) {
      because(`the description of the kernels cannot be read: ${String(error)}`);
    }
  }

  /** The runtime gives a callback's number to another function. */
  forget(self: number): void {
    this.known.delete(self);
  }

  /** Drops everything that was learned. */
  clear(): void {
    this.forms.clear();
    this.known.clear();
    this.keptCount = 0;
  }

  isKnown(self: number): boolean {
    return this.known.has(self);
  }

  /** The launch of a known kernel; undefined if the runtime has to make it. */
  launch(self: number, { words, doubles }: Memory, args: number, count: number): Launch | undefined {
    const kernel = this.known.get(self);
    if (!kernel || count !== kernel.form.count) return undefined;
    if (!this.read(kernel.form, words, doubles, args, count)) return undefined;
    const hash = this.hash(count);
    return this.find(kernel, hash) ?? this.make(kernel, hash);
  }

  /** A callback of the runtime's encoded one launch: if the module would have encoded the same, it will from now on. */
  learn(self: number, { words, doubles }: Memory, args: number, count: number, issued: Launch): void {
    const name = this.device().kernelNames.get(issued.pipeline);
    const form = name === undefined ? undefined : this.forms.get(name);
    if (!form || count !== form.count || !this.read(form, words, doubles, args, count)) return;
    const kernel = { form, pipeline: issued.pipeline, layout: issued.group.layout, kept: new Map<number, Kept[]>() };
    const own = this.make(kernel, this.hash(count));
    if (own && own.group === issued.group && own.x === issued.x && own.y === issued.y && own.z === issued.z)
      this.known.set(self, kernel);
    else if (own) {
      because("the client launches kernels in a way that the module does not know: it goes on launching them itself");
      this.clear();
    }
  }

  /** Copies the arguments as words, floats as float32; false if one is of another kind than the form. */
  private read(form: Form, memory: Int32Array, doubles: Float64Array, args: number, count: number): boolean {
    if (this.words.length < count) this.words = new Int32Array(2 * count);
    const { words } = this;
    for (let i = 0, at = args >> 2; i < count; i++, at += 4) {
      const type = memory[at]!;
      if (type === FLOAT) {
        this.float[0] = doubles[(at + 2) >> 1]!;
        words[i] = this.floatBits[0]!;
      } else if (type === POINTER || type === INT || type === BOOL) words[i] = memory[at + 2]!;
      else if (type === NONE) words[i] = 0;
      else return false;
    }
    for (const i of form.buffers) if (memory[(args >> 2) + 4 * i] !== POINTER) return false;
    return true;
  }

  private hash(count: number): number {
    let hash = count;
    for (let i = 0; i < count; i++) hash = Math.imul(hash ^ this.words[i]!, 0x01000193) ^ (hash >>> 15);
    return hash;
  }

  private find({ form: { buffers }, kept }: Kernel, hash: number): Launch | undefined {
    const { words } = this;
    next: for (const { words: other, launch } of kept.get(hash) ?? []) {
      for (let i = 0; i < other.length; i++) if (other[i] !== words[i]) continue next;
      // The runtime's number of a buffer that is gone may be another buffer's by now.
      const { storage } = launch.group;
      for (let i = 0; i < buffers.length; i++) if (storage[i]!.handle !== words[buffers[i]!]) continue next;
      return launch;
    }
    return undefined;
  }

  private make({ form, pipeline, layout, kept }: Kernel, hash: number): Launch | undefined {
    const { words } = this;
    const [x, y, z] = form.grid.map((i) => (i < 0 ? 1 : words[i]!)) as [number, number, number];
    if (x >= MAX_GRID || z !== 1) return undefined; // the runtime spreads the first over z, and refuses the second
    const storage: BufferState[] = [];
    for (const i of form.buffers) {
      const handle = words[i]! >>> 0;
      const buffer = this.bufferAt(handle);
      const state = buffer && stateOf(buffer);
      if (state?.handle !== handle) return undefined;
      storage.push(state);
    }
    const scalars = Int32Array.from([...form.scalars.map((i) => words[i]!), x]);
    const group = this.device().groups.kernel(layout, storage, new Uint8Array(scalars.buffer));
    if (!group) return undefined;
    if (++this.keptCount > MAX_KEPT) {
      for (const kernel of this.known.values()) kernel.kept.clear();
      this.keptCount = 1;
    }
    const launch: Launch = { kind: "launch", pipeline, group, x, y, z };
    const same = kept.get(hash);
    if (same && same.length < 4) same.push({ words: words.slice(0, form.count), launch });
    else kept.set(hash, [{ words: words.slice(0, form.count), launch }]);
    return launch;
  }
}
