// The launches of one function of the library, recorded once and bound to buffers of the module's own.
//
// What a launch reads and no launch of the function writes stays as it is (weights), and so do the buffers that are
// kept (keys, values, results). What differs from step to step is bound from a slot. Everything else that the
// function writes is scratch, which the library's pool may hand to others before the next step: private buffers
// take its place. The pool may also have made a result's buffer out of one that held something on the way: the result
// is there from the last launch on that writes the buffer, for one launch writes all of a result: matrices in parts end
// in one that puts them together, and lookups in parts hand a new buffer on (passes/split_matmuls.py).
import type { Group } from "../gpu/bind_groups";
import type { BufferState, Dependent } from "../gpu/buffers";
import type { Native } from "../gpu/native";
import type { Launch, ReadyLaunch } from "../gpu/stream";
import { counts } from "../stats";

/** What a slot takes the place of and a function only reads: inputs of a step, and of a round of drafts. */
export type InputRegion = "token" | "positions" | "rotary" | "temperature" | "uniform" | "top_p" | "ids" | "hidden";
/** And what it writes: the token that it draws or drafts; the logits and states of rows. */
export type OutputRegion = "drawn" | "next_hidden" | "all_logits" | "states";
export type Region = InputRegion | OutputRegion;

const OUTPUTS: readonly Region[] = ["drawn", "next_hidden", "all_logits", "states"] satisfies OutputRegion[];

export interface Binding {
  readonly buffer: GPUBuffer;
  readonly offset: number;
  readonly size: number;
}

export type Slot = Readonly<Partial<Record<Region, Binding>>>;

const writtenBy = (group: Group): BufferState[] => group.storage.filter((_, i) => group.writes[i]);

/** Private buffers in the place of the library's scratch. */
export class Scratch {
  private readonly buffers = new Map<BufferState, GPUBuffer>();

  constructor(private readonly native: Native) {}

  inPlaceOf(state: BufferState): GPUBuffer {
    let found = this.buffers.get(state);
    if (!found) {
      const { size, usage } = state.buffer;
      found = this.native.createBuffer({ size, usage });
      this.buffers.set(state, found);
      counts.buffers += 1;
    }
    return found;
  }

  destroy(): void {
    for (const buffer of this.buffers.values()) buffer.destroy();
    this.buffers.clear();
  }
}

export interface Roles {
  /** Buffers that a slot takes the place of. */
  readonly regions: ReadonlyMap<BufferState, Region>;
  /** Buffers that the function writes and that stay: keys, values, its result. */
  readonly kept: ReadonlySet<BufferState>;
}

/** Which launches a slot takes the place of a buffer in. */
class Regions {
  /** Of buffers with results: the last launch that writes them. */
  private readonly begins = new Map<BufferState, number>();

  constructor(
    private readonly regions: ReadonlyMap<BufferState, Region>,
    launches: readonly Launch[],
  ) {
    for (const [i, { group }] of launches.entries()) {
      for (const state of writtenBy(group)) if (this.isResult(state)) this.begins.set(state, i);
    }
  }

  /** The region of a buffer in the launch of this number. */
  at(launch: number, state: BufferState): Region | undefined {
    return launch < (this.begins.get(state) ?? 0) ? undefined : this.regions.get(state);
  }

  private isResult(state: BufferState): boolean {
    const region = this.regions.get(state);
    return region !== undefined && OUTPUTS.includes(region);
  }
}

export class FunctionRecord {
  /** Buffers that the record uses as they are. */
  readonly external: ReadonlySet<BufferState>;
  private readonly shared: (GPUBindGroup | undefined)[];

  private constructor(
    private readonly native: Native,
    private readonly launches: readonly Launch[],
    private readonly regions: Regions,
    private readonly substitutes: ReadonlyMap<BufferState, GPUBuffer>,
  ) {
    const external = new Set<BufferState>();
    for (const [i, { group }] of launches.entries()) {
      for (const state of group.storage) if (!regions.at(i, state) && !substitutes.has(state)) external.add(state);
    }
    this.external = external;
    this.shared = launches.map(({ group }, i) =>
      group.storage.some((state) => regions.at(i, state)) ? undefined : this.makeGroup(i),
    );
  }

  /** The record, or why there can be none. */
  static make(native: Native, launches: readonly Launch[], roles: Roles, scratch: Scratch): FunctionRecord | string {
    if (launches.length === 0) return "launches nothing";
    const writtenInAll = new Set(launches.flatMap(({ group }) => writtenBy(group)));
    const regions = new Regions(roles.regions, launches);
    const written = new Set<BufferState>();
    const replaced = new Set<BufferState>();
    for (const [launch, { group }] of launches.entries()) {
      for (const [i, state] of group.storage.entries()) {
        const region = regions.at(launch, state);
        if (group.writes[i] && region !== undefined && !OUTPUTS.includes(region)) return `writes its input ${region}`;
        if (region !== undefined || roles.kept.has(state) || !writtenInAll.has(state)) continue;
        if (!group.writes[i] && !written.has(state)) return "reads what an earlier call left behind";
        replaced.add(state);
      }
      for (const state of writtenBy(group)) written.add(state);
    }
    const substitutes = new Map(Array.from(replaced, (state) => [state, scratch.inPlaceOf(state)]));
    counts.recorded += 1;
    return new FunctionRecord(native, launches, regions, substitutes);
  }

  bind(slot: Slot): ReadyLaunch[] {
    return this.launches.map((launch, i) => ({
      pipeline: launch.pipeline,
      group: this.shared[i] ?? this.makeGroup(i, slot),
      x: launch.x,
      y: launch.y,
      z: launch.z,
    }));
  }

  dependOn(dependent: Dependent): void {
    for (const state of this.external) state.dependents.add(dependent);
  }

  release(dependent: Dependent): void {
    for (const state of this.external) state.dependents.delete(dependent);
  }

  private makeGroup(launch: number, slot?: Slot): GPUBindGroup {
    counts.bindGroups += 1;
    const { group } = this.launches[launch]!;
    const entries: GPUBindGroupEntry[] = group.storage.map((state, binding) => {
      const region = this.regions.at(launch, state);
      if (region !== undefined) return { binding, resource: slot![region]! };
      return { binding, resource: { buffer: this.substitutes.get(state) ?? state.buffer } };
    });
    entries.push({ binding: entries.length, resource: group.uniform });
    return this.native.createBindGroup({ layout: group.layout, entries });
  }
}
