// Replaces the client's command encoders: a list of launches and copies, which becomes commands when it is
// submitted. Anything else that an encoder can do makes it a real one, which is submitted as the client does.
import { type Group, groupOf } from "./bind_groups";
import { stateOf } from "./buffers";
import type { Command, Copy, Launch } from "./stream";
import { because } from "../stats";

export interface EncoderHost {
  /** An encoder has its first command. */
  opened(): void;
  /** An encoder with commands was finished as a real one. */
  finishedNative(buffer: GPUCommandBuffer): void;
  createNative(descriptor?: GPUCommandEncoderDescriptor): GPUCommandEncoder;
  /** A launch or a copy of the client's, when it is encoded. A copy may be answered without running it. */
  encoded(command: Command): Command | undefined;
  /** Commands that go into an encoder of the client's: their buffers must be up to date. */
  encodedElsewhere(command: Command): void;
}

/** What `finish` returns: an opaque object for the client, with the list for `submit`. */
export class CommandList {
  readonly label = "";
  constructor(readonly commands: readonly Command[]) {}
}

const REAL_METHODS = [
  "beginRenderPass",
  "copyBufferToTexture",
  "copyTextureToBuffer",
  "copyTextureToTexture",
  "clearBuffer",
  "resolveQuerySet",
  "writeTimestamp",
  "pushDebugGroup",
  "popDebugGroup",
  "insertDebugMarker",
] as const;

export class Encoder {
  readonly label = "";
  private commands: Command[] = [];
  private real: GPUCommandEncoder | undefined;
  private pipeline: GPUComputePipeline | undefined;
  private group: GPUBindGroup | undefined;
  private known: Group | undefined;
  private realPass: GPUComputePassEncoder | undefined;

  constructor(
    private readonly host: EncoderHost,
    private readonly descriptor?: GPUCommandEncoderDescriptor,
  ) {
    for (const name of REAL_METHODS) {
      Object.defineProperty(this, name, {
        configurable: true,
        value: (...args: unknown[]) => {
          const real = this.becomeReal(`encoder.${name}`) as unknown as Record<string, (...args: unknown[]) => unknown>;
          return real[name]!(...args);
        },
      });
    }
  }

  // --- As a command encoder ---

  beginComputePass(descriptor?: GPUComputePassDescriptor): GPUComputePassEncoder {
    if (descriptor?.timestampWrites) this.becomeReal("timestamps");
    if (this.real) return this.real.beginComputePass(descriptor);
    this.pipeline = this.group = this.known = undefined;
    return this as unknown as GPUComputePassEncoder;
  }

  copyBufferToBuffer(...args: unknown[]): void {
    // (source, target, size?) is the short form of (source, sourceOffset, target, targetOffset, size?).
    const [from, sourceOffset, to, targetOffset, size] = (
      typeof args[1] === "object" ? [args[0], 0, args[1], 0, args[2]] : args
    ) as [GPUBuffer, number, GPUBuffer, number, number | undefined];
    const source = stateOf(from);
    const target = stateOf(to);
    if (!source || !target || this.real) {
      this.becomeReal("copies of unknown buffers").copyBufferToBuffer(
        from,
        sourceOffset,
        to,
        targetOffset,
        size ?? from.size - sourceOffset,
      );
      return;
    }
    this.add({
      kind: "copy",
      source,
      sourceOffset,
      target,
      targetOffset,
      bytes: size ?? from.size - sourceOffset,
    } satisfies Copy);
  }

  finish(descriptor?: GPUCommandBufferDescriptor): GPUCommandBuffer {
    if (this.real) {
      const finished = this.real.finish(descriptor);
      this.host.finishedNative(finished);
      return finished;
    }
    return new CommandList(this.commands) as unknown as GPUCommandBuffer;
  }

  // --- As a compute pass ---

  setPipeline(pipeline: GPUComputePipeline): void {
    if (this.realPass) this.realPass.setPipeline(pipeline);
    this.pipeline = pipeline;
  }

  setBindGroup(index: number, group: GPUBindGroup | null, ...offsets: unknown[]): void {
    const known = group ? groupOf(group) : undefined;
    if (this.realPass || !known || index !== 0 || offsets.length > 0) {
      (this.startRealPass("bind groups of another form").setBindGroup as (...args: unknown[]) => void)(
        index,
        group,
        ...offsets,
      );
      return;
    }
    this.group = group!;
    this.known = known;
  }

  dispatchWorkgroups(x: number, y = 1, z = 1): void {
    if (this.realPass || !this.pipeline || !this.known) {
      this.startRealPass("a launch without pipeline or bind group").dispatchWorkgroups(x, y, z);
      return;
    }
    this.add({ kind: "launch", pipeline: this.pipeline, group: this.known, x, y, z } satisfies Launch);
  }

  dispatchWorkgroupsIndirect(buffer: GPUBuffer, offset: number): void {
    this.startRealPass("indirect launches").dispatchWorkgroupsIndirect(buffer, offset);
  }

  end(): void {
    this.realPass?.end();
    this.realPass = undefined;
  }

  // --- Turning real ---

  private add(command: Command): void {
    const kept = this.host.encoded(command);
    if (kept && this.commands.push(kept) === 1) this.host.opened();
  }

  private becomeReal(reason: string): GPUCommandEncoder {
    if (this.real) return this.real;
    because(`an encoder was used in a way that the module does not know (${reason})`);
    if (this.commands.length === 0) this.host.opened();
    const real = this.host.createNative(this.descriptor);
    this.real = real;
    let pass: GPUComputePassEncoder | undefined;
    for (const command of this.commands) {
      this.host.encodedElsewhere(command);
      if (command.kind === "launch") {
        pass ??= real.beginComputePass();
        pass.setPipeline(command.pipeline);
        pass.setBindGroup(0, command.group.group);
        pass.dispatchWorkgroups(command.x, command.y, command.z);
      } else {
        pass?.end();
        pass = undefined;
        real.copyBufferToBuffer(
          command.source.buffer,
          command.sourceOffset,
          command.target.buffer,
          command.targetOffset,
          command.bytes,
        );
      }
    }
    pass?.end();
    this.commands = [];
    return real;
  }

  /** The pass goes on in a real encoder. */
  private startRealPass(reason: string): GPUComputePassEncoder {
    if (!this.realPass) {
      this.realPass = this.becomeReal(reason).beginComputePass();
      if (this.pipeline) this.realPass.setPipeline(this.pipeline);
      if (this.group) this.realPass.setBindGroup(0, this.group);
    }
    return this.realPass;
  }
}
