// The commands on their way to the queue: one compute pass as long as nothing else comes between, one submission for
// all that was submitted since the last one. A host write to a small buffer waits until a command uses the buffer.
import type { Group } from "./bind_groups";
import type { BufferState } from "./buffers";
import type { Native } from "./native";
import { counts } from "../stats";

export interface Launch {
  readonly kind: "launch";
  readonly pipeline: GPUComputePipeline;
  readonly group: Group;
  readonly x: number;
  readonly y: number;
  readonly z: number;
}

export interface Copy {
  readonly kind: "copy";
  readonly source: BufferState;
  readonly sourceOffset: number;
  readonly target: BufferState;
  readonly targetOffset: number;
  readonly bytes: number;
}

export type Command = Launch | Copy;

/** A launch whose buffers are private, or were looked after before. */
export interface ReadyLaunch {
  readonly pipeline: GPUComputePipeline;
  readonly group: GPUBindGroup;
  readonly x: number;
  readonly y: number;
  readonly z: number;
}

/** So many launches are held back at first, and up to so many later: the GPU shall begin soon, and not be fed in crumbs. */
const FIRST_HELD_LAUNCHES = 8;
const MOST_HELD_LAUNCHES = 128;
/**
 * And no more workgroups than these, which a layer of a vision tower or of a long prompt comes to: systems reset a GPU
 * that is busy with one submission for seconds. A step of one token has fewer in most layers together.
 */
const MOST_HELD_WORKGROUPS = 16_384;

export class Stream {
  /** Number of the next submission. */
  serial = 1;
  private readonly writes = new Set<BufferState>();
  private encoder: GPUCommandEncoder | undefined;
  private pass: GPUComputePassEncoder | undefined;
  private pipeline: GPUComputePipeline | undefined;
  private launches = 0;
  private workgroups = 0;
  private held = FIRST_HELD_LAUNCHES;
  private scheduled = false;

  constructor(private readonly device: () => Native) {}

  private get native(): Native {
    return this.device();
  }

  // --- Host writes ---

  /** Keeps a write to the beginning of a small buffer until a command uses it. */
  hold(state: BufferState, bytes: Uint8Array): void {
    if (state.pending && state.pending.byteLength > bytes.byteLength) this.write(state);
    state.pending = bytes;
    this.writes.add(state);
  }

  /** Hands a kept write to the queue. */
  write(state: BufferState): void {
    const { pending } = state;
    if (!pending) return;
    if (state.usedIn === this.serial) this.flush();
    this.native.writeBuffer(state.buffer, 0, pending);
    this.forget(state);
  }

  /** Drops a kept write: the buffer goes, or is given out again. */
  forget(state: BufferState): void {
    state.pending = undefined;
    this.writes.delete(state);
  }

  writeAll(): void {
    for (const state of this.writes) this.write(state);
  }

  // --- Commands ---

  append(command: Command): void {
    if (command.kind === "launch") {
      const { storage, writes } = command.group;
      for (const state of storage) if (state.pending) this.write(state);
      for (let i = 0; i < storage.length; i++) this.use(storage[i]!, writes[i]!);
      this.launch(command.pipeline, command.group.group, command.x, command.y, command.z);
    } else {
      const { source, target } = command;
      if (source.pending) this.write(source);
      if (target.pending) this.write(target);
      this.use(source, false);
      this.use(target, true);
      this.opened().copyBufferToBuffer(
        source.buffer,
        command.sourceOffset,
        target.buffer,
        command.targetOffset,
        command.bytes,
      );
    }
    this.schedule();
  }

  /** Launches whose buffers need no care. */
  appendReady(launches: readonly ReadyLaunch[]): void {
    for (const { pipeline, group, x, y, z } of launches) this.launch(pipeline, group, x, y, z);
    this.schedule();
  }

  /** Submits if there is enough to do for the GPU. */
  submitted(): void {
    if (this.launches < this.held && this.workgroups < MOST_HELD_WORKGROUPS) return;
    this.held = Math.min(MOST_HELD_LAUNCHES, this.held * 2);
    this.flush();
  }

  /** Submits what has been collected. */
  flush(): void {
    if (!this.encoder) return;
    this.pass?.end();
    const commands = this.encoder.finish();
    this.encoder = this.pass = this.pipeline = undefined;
    this.launches = this.workgroups = 0;
    this.serial += 1;
    counts.submissions += 1;
    this.native.submit([commands]);
  }

  /** Submits command buffers that were made elsewhere, after what has been collected. */
  submit(buffers: Iterable<GPUCommandBuffer>): void {
    this.flush();
    counts.submissions += 1;
    this.native.submit(buffers);
  }

  private use(state: BufferState, isWritten: boolean): void {
    state.usedIn = this.serial;
    if (isWritten) state.content = state.written = undefined;
  }

  private launch(pipeline: GPUComputePipeline, group: GPUBindGroup, x: number, y: number, z: number): void {
    if (!this.pass) {
      this.encoder ??= this.native.createCommandEncoder();
      this.pass = this.encoder.beginComputePass();
      this.pipeline = undefined;
      counts.passes += 1;
    }
    if (pipeline !== this.pipeline) this.pass.setPipeline(pipeline);
    this.pipeline = pipeline;
    this.pass.setBindGroup(0, group);
    this.pass.dispatchWorkgroups(x, y, z);
    this.launches += 1;
    this.workgroups += x * y * z;
    counts.launches += 1;
  }

  /** The encoder, outside of a pass. */
  private opened(): GPUCommandEncoder {
    this.pass?.end();
    this.pass = undefined;
    this.encoder ??= this.native.createCommandEncoder();
    return this.encoder;
  }

  /** Nothing stays back when the caller waits for something that the module does not see. */
  private schedule(): void {
    if (this.scheduled) return;
    this.scheduled = true;
    queueMicrotask(() => {
      this.scheduled = false;
      this.held = FIRST_HELD_LAUNCHES;
      this.flush();
    });
  }
}

/** Commands for `launches` alone, in one pass, and then what `after` adds. */
export function encode(
  native: Native,
  launches: Iterable<ReadyLaunch>,
  after?: (encoder: GPUCommandEncoder) => void,
): GPUCommandBuffer {
  const encoder = native.createCommandEncoder();
  const pass = encoder.beginComputePass();
  counts.passes += 1;
  let current: GPUComputePipeline | undefined;
  for (const { pipeline, group, x, y, z } of launches) {
    if (pipeline !== current) pass.setPipeline(pipeline);
    current = pipeline;
    pass.setBindGroup(0, group);
    pass.dispatchWorkgroups(x, y, z);
    counts.launches += 1;
  }
  pass.end();
  after?.(encoder);
  return encoder.finish();
}
