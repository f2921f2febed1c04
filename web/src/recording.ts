// The launches of one function of the library, recorded once and bound to buffers of the module's own.
//
// What a launch reads and no launch of the function writes stays as it is (weights), and so do the buffers that are
// kept (keys, values, results). What differs from step to step is bound from a slot. Everything else that the
// function writes is scratch, which the library's pool may hand to others before the next step: private buffers
// take its place.
import type { Group } from "./bind_groups";
import type { BufferState, Dependent } from "./buffers";
import type { Native } from "./native";
import type { Launch, ReadyLaunch } from "./stream";
import { counts } from "./stats";

/** What a slot takes the place of and a function only reads: inputs of a step, and of a round of guesses. */
export type InputRegion = "token" | "positions" | "rotary" | "temperature" | "uniform" | "top_p" | "ids" | "hidden";
/** And what it writes: the token that it draws or guesses; the logits and states of rows. */
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

export class FunctionRecord {
  /** Buffers that the record uses as they are. */
  readonly external: ReadonlySet<BufferState>;
  private readonly shared: (GPUBindGroup | undefined)[];

  private constructor(
    private readonly native: Native,
    private readonly launches: readonly Launch[],
    private readonly roles: Roles,
    private readonly substitutes: ReadonlyMap<BufferState, GPUBuffer>,
  ) {
    const external = new Set<BufferState>();
    for (const { group } of launches) {
      for (const state of group.storage) if (!roles.regions.has(state) && !substitutes.has(state)) external.add(state);
    }
    this.external = external;
    this.shared = launches.map((launch) =>
      launch.group.storage.some((state) => roles.regions.has(state)) ? undefined : this.makeGroup(launch),
    );
  }

  /** The record, or why there can be none. */
  static make(native: Native, launches: readonly Launch[], roles: Roles, scratch: Scratch): FunctionRecord | string {
    if (launches.length === 0) return "launches nothing";
    const writtenInAll = new Set<BufferState>();
    for (const { group } of launches) for (const state of writtenBy(group)) writtenInAll.add(state);
    const written = new Set<BufferState>();
    for (const { group } of launches) {
      for (const [i, state] of group.storage.entries()) {
        const region = roles.regions.get(state);
        if (group.writes[i] && region !== undefined && !OUTPUTS.includes(region)) return `writes its input ${region}`;
        const isScratch = writtenInAll.has(state) && region === undefined && !roles.kept.has(state);
        if (isScratch && !group.writes[i] && !written.has(state)) return "reads what an earlier call left behind";
      }
      for (const state of writtenBy(group)) written.add(state);
    }
    const substitutes = new Map<BufferState, GPUBuffer>();
    for (const state of writtenInAll) {
      if (!roles.regions.has(state) && !roles.kept.has(state)) substitutes.set(state, scratch.inPlaceOf(state));
    }
    counts.recorded += 1;
    return new FunctionRecord(native, launches, roles, substitutes);
  }

  bind(slot: Slot): ReadyLaunch[] {
    return this.launches.map((launch, i) => ({
      pipeline: launch.pipeline,
      group: this.shared[i] ?? this.makeGroup(launch, slot),
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

  private makeGroup({ group }: Launch, slot?: Slot): GPUBindGroup {
    counts.bindGroups += 1;
    const entries: GPUBindGroupEntry[] = group.storage.map((state, binding) => {
      const region = this.roles.regions.get(state);
      if (region !== undefined) return { binding, resource: slot![region]! };
      return { binding, resource: { buffer: this.substitutes.get(state) ?? state.buffer } };
    });
    entries.push({ binding: entries.length, resource: group.uniform });
    return this.native.createBindGroup({ layout: group.layout, entries });
  }
}
