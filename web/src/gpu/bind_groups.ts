// Bind groups kept by what they bind: layout, buffers, and the content of the uniform buffer.
import { type BufferState, newId, stateOf } from "./buffers";
import type { Native } from "./native";
import { counts } from "../stats";

const MAX_GROUPS = 8192;
const MAX_UNIFORMS = 8192;

/** What the module knows of a bind group layout. */
export interface LayoutNote {
  readonly id: number;
  /** By binding: whether kernels may write the buffer. */
  readonly writes: readonly boolean[];
  /** Storage buffers followed by one uniform buffer, without dynamic offsets: as TVM's runtime makes them. */
  readonly isKernel: boolean;
}

/** A bind group with what it binds. `storage` are its storage buffers in the order of the bindings. */
export interface Group {
  readonly group: GPUBindGroup;
  readonly layout: GPUBindGroupLayout;
  readonly storage: readonly BufferState[];
  readonly writes: readonly boolean[];
  /** The last binding's resource. */
  readonly uniform: GPUBufferBinding;
}

const NOTE = Symbol("gemma4-web layout");
const GROUP = Symbol("gemma4-web group");

export function noteLayout(layout: GPUBindGroupLayout, descriptor: GPUBindGroupLayoutDescriptor): void {
  const entries = [...descriptor.entries];
  const kinds = entries.map(({ buffer }) => buffer?.type ?? "uniform");
  const note: LayoutNote = {
    id: newId(),
    writes: kinds.slice(0, -1).map((kind) => kind === "storage"),
    isKernel:
      entries.length > 0 &&
      entries.every(({ binding, buffer }, i) => binding === i && buffer !== undefined && !buffer.hasDynamicOffset) &&
      kinds.every((kind, i) => (kind === "uniform") === (i === kinds.length - 1)),
  };
  (layout as GPUBindGroupLayout & { [NOTE]?: LayoutNote })[NOTE] = note;
}

const noteOf = (layout: GPUBindGroupLayout) => (layout as GPUBindGroupLayout & { [NOTE]?: LayoutNote })[NOTE];
export const groupOf = (group: GPUBindGroup) => (group as GPUBindGroup & { [GROUP]?: Group })[GROUP];

export class BindGroups {
  private readonly groups = new Map<string, Group>();
  private readonly uniforms = new Map<string, { id: number; buffer: GPUBuffer }>();

  constructor(
    private readonly device: () => Native,
    /** Called before uniform buffers are destroyed: commands that use them must have been submitted. */
    private readonly flush: () => void,
  ) {}

  private get native(): Native {
    return this.device();
  }

  /** The bind group for a kernel's launch; undefined if the descriptor is of another form. */
  find({ layout, entries }: GPUBindGroupDescriptor): GPUBindGroup | undefined {
    const note = noteOf(layout);
    if (!note?.isKernel) return undefined;
    const bound = entries as GPUBindGroupEntry[];
    const count = note.writes.length;
    if (bound.length !== count + 1) return undefined;
    const last = bound[count]!.resource as GPUBufferBinding;
    const content = last.buffer && stateOf(last.buffer)?.content;
    if (!content || last.offset) return undefined;
    const storage: BufferState[] = [];
    for (let i = 0; i < count; i++) {
      const resource = bound[i]!.resource as GPUBufferBinding;
      const state = resource.buffer && stateOf(resource.buffer);
      if (!state || bound[i]!.binding !== i || resource.offset || resource.size !== undefined) return undefined;
      storage.push(state);
    }
    return this.kept(layout, note, storage, content, last.size).group;
  }

  /** The group of a kernel's launch on `storage`, with `content` in its uniform buffer. */
  kernel(layout: GPUBindGroupLayout, storage: readonly BufferState[], content: Uint8Array): Group | undefined {
    const note = noteOf(layout);
    return note?.isKernel && note.writes.length === storage.length
      ? this.kept(layout, note, storage, content, content.byteLength)
      : undefined;
  }

  private kept(
    layout: GPUBindGroupLayout,
    note: LayoutNote,
    storage: readonly BufferState[],
    content: Uint8Array,
    size: number | undefined,
  ): Group {
    const uniform = this.uniform(content);
    let key = `${note.id},${uniform.id}`;
    for (const state of storage) key += `,${state.id}`;
    return this.groups.get(key) ?? this.make(key, layout, note, storage, { buffer: uniform.buffer, size });
  }

  private make(
    key: string,
    layout: GPUBindGroupLayout,
    note: LayoutNote,
    storage: readonly BufferState[],
    uniform: GPUBufferBinding,
  ): Group {
    if (this.groups.size >= MAX_GROUPS) this.forget(MAX_GROUPS / 2);
    const entries = [...storage.map(({ buffer }) => ({ buffer })), uniform].map((resource, binding) => ({
      binding,
      resource,
    }));
    const group = this.native.createBindGroup({ layout, entries });
    counts.bindGroups += 1;
    const made: Group = { group, layout, storage, writes: note.writes, uniform };
    (group as GPUBindGroup & { [GROUP]?: Group })[GROUP] = made;
    for (const state of storage) state.groups.add(key);
    this.groups.set(key, made);
    return made;
  }

  /** Drops the groups that name a buffer which goes. */
  drop(state: BufferState): void {
    for (const key of state.groups) this.remove(key);
    state.groups.clear();
  }

  /** Drops everything; uniform buffers that records use stay with them. */
  clear(): void {
    this.forget(this.groups.size);
  }

  private forget(count: number): void {
    for (const key of this.groups.keys()) {
      if (count-- <= 0) break;
      this.remove(key);
    }
  }

  private remove(key: string): void {
    for (const state of this.groups.get(key)?.storage ?? []) state.groups.delete(key);
    this.groups.delete(key);
  }

  /** A uniform buffer that holds `content` for good. */
  private uniform(content: Uint8Array): { id: number; buffer: GPUBuffer } {
    const key = new Int32Array(content.buffer, content.byteOffset, content.byteLength >> 2).join();
    const found = this.uniforms.get(key);
    if (found) return found;
    if (this.uniforms.size >= MAX_UNIFORMS) {
      // Garbage collection frees the buffers that no record binds any more.
      this.flush();
      this.clear();
      this.uniforms.clear();
    }
    const buffer = this.native.createBuffer({
      size: Math.max(16, content.byteLength),
      usage: GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST,
    });
    this.native.writeBuffer(buffer, 0, content);
    const made = { id: newId(), buffer };
    this.uniforms.set(key, made);
    counts.uniforms += 1;
    return made;
  }
}
