// One GPU device that a recognised library uses: methods of our own on this object and its queue, never on prototypes.
import { BindGroups, noteLayout } from "./bind_groups";
import { BufferState, bytesOf, type Catcher, isCaught, stateOf } from "./buffers";
import { CommandList, Encoder, type EncoderHost } from "./encoder";
import type { KernelGate } from "./kernel_gate";
import { type Native, nativeOf } from "./native";
import { type Command, type Launch, Stream } from "./stream";
import { counts } from "../stats";
import { Waits, watchWaits, withWaits } from "./waits";

/** Buffers as TVM's runtime makes them for tensors. */
const tensorUsage = () => GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
const uniformUsage = () => GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST;

/** Notes to which library a device belongs. */
export interface Owner {
  /** Whether a recognised library makes a buffer now: the device is its device then. */
  claims(device: Device): boolean;
  /** Whether a recognised library's callback runs now. */
  isCalling(): boolean;
  /** Takes what is written to the tensor that is made now. */
  catcherOf?(bytes: number): Catcher | undefined;
}

/** Stands between the client and its waits, and keeps the buffers that it lets go. */
export interface WaitObserver {
  /** What the client gets for a wait. `isRead`: for the host's copy of something, not for the queue. */
  waited<T>(wait: Promise<T>, isRead: boolean): Promise<T>;
  keep(destroy: () => void): void;
}

/** Up to this size what the host wrote is remembered, and a buffer that is let go is kept for the next request. */
const SMALL_BYTES = 64;
/** Up to this size a host write waits for the command that needs it: positions and rotary values of a step. */
const HELD_WRITE_BYTES = 16384;
const MAX_SPARE = 64;

export class Device implements EncoderHost {
  native: Native;
  readonly stream: Stream;
  readonly groups: BindGroups;
  readonly waits: Waits;
  /** The buffer made last: the runtime's callback that makes one names it. */
  lastCreated: BufferState | undefined;
  /** Commands encoded so far, and the last launch of them. */
  encodedCount = 0;
  lastLaunch: Launch | undefined;
  /** Names of the kernels. */
  readonly kernelNames = new WeakMap<GPUComputePipeline, string>();
  /** Launches that are encoded now, if somebody records them; undefined inside: something else was encoded. */
  recording: { launches: Launch[]; isClean: boolean; isDry?: boolean } | undefined;
  gate: KernelGate | undefined; // of the library's kernels
  /** Called when the client begins to wait for the host's copy of something. */
  onWait: (() => void) | undefined;
  observer: WaitObserver | undefined;
  isLost = false;
  /** A prompt was issued, and nothing was drawn from it yet. */
  isPromptUndrawn = false;
  /** Encoders of the client's with commands that are not submitted yet. */
  openEncoders = 0;
  private isBound = false;
  isPlain = false;
  keepsWrites = false; // what the host writes to small tensors
  private readonly spare = new Map<number, GPUBuffer[]>();
  private readonly finished = new WeakSet<GPUCommandBuffer>();
  private heldScopes: GPUErrorFilter[] = [];
  private realScopes = 0;

  /** Until a library claims the device all methods but two are the device's own. */
  constructor(
    readonly device: GPUDevice,
    readonly adapter: GPUAdapterInfo,
    private readonly owner: Owner,
  ) {
    const native = nativeOf(device);
    this.waits = new Waits(native);
    this.native = withWaits(native, this.waits);
    watchWaits(device, this.native, this.waits);
    this.stream = new Stream(() => this.native);
    this.groups = new BindGroups(
      () => this.native,
      () => this.stream.flush(),
    );
    device.createBuffer = (descriptor) => {
      if (this.isBound || this.bindIfOwned()) return this.createBuffer(descriptor);
      return this.native.createBuffer(descriptor);
    };
    device.createBindGroupLayout = (descriptor) => {
      this.realiseScopes();
      const layout = this.native.createBindGroupLayout(descriptor);
      noteLayout(layout, descriptor);
      return layout;
    };
    void device.lost.then(() => {
      this.isLost = true;
      this.waits.stop();
    });
  }

  /** From now on everything goes straight to the device. What the module holds back is handed over. */
  makePlain(): void {
    this.stream.writeAll();
    this.stream.flush();
    this.realiseScopes();
    this.isPlain = true;
    this.waits.stop();
    this.onWait = undefined;
    this.groups.clear();
  }

  private bindIfOwned(): boolean {
    if (this.isPlain || !this.owner.claims(this)) return false;
    this.isBound = true;
    counts.devices += 1;
    // What others have put in front of the device's methods meanwhile goes on below the module.
    const { createBuffer, createBindGroupLayout } = this.native;
    this.native = { ...nativeOf(this.device), createBuffer, createBindGroupLayout };
    this.overrideDevice();
    this.overridePipelines();
    this.overrideQueue();
    return true;
  }

  private overrideDevice(): void {
    const { device, native } = this;
    device.createBindGroup = (descriptor) => {
      this.realiseScopes();
      if (!this.isPlain) {
        const kept = this.groups.find(descriptor);
        if (kept) return kept;
        this.writeUniforms(descriptor);
      }
      return native.createBindGroup(descriptor);
    };
    device.createCommandEncoder = (descriptor) => {
      this.realiseScopes();
      return this.isPlain
        ? native.createCommandEncoder(descriptor)
        : (new Encoder(this, descriptor) as unknown as GPUCommandEncoder);
    };
    // The runtime opens three scopes around every buffer. Around one that is given out again nothing can fail.
    device.pushErrorScope = (filter) => {
      this.heldScopes.push(filter);
    };
    device.popErrorScope = () => {
      if (this.heldScopes.pop() !== undefined) return Promise.resolve(null);
      this.realScopes -= 1;
      return native.popErrorScope();
    };
    for (const name of [
      "createTexture",
      "createSampler",
      "createPipelineLayout",
      "createShaderModule",
      "createComputePipeline",
      "createRenderPipeline",
      "createComputePipelineAsync",
      "createRenderPipelineAsync",
      "createQuerySet",
      "createRenderBundleEncoder",
      "importExternalTexture",
    ] as const) {
      const methods = device as unknown as Record<string, ((...args: unknown[]) => unknown) | undefined>;
      const original = methods[name]?.bind(device);
      if (!original) continue;
      methods[name] = (...args) => {
        this.realiseScopes();
        return original(...args);
      };
    }
  }

  /** Kernels pass the gate on their way to the client. */
  private overridePipelines(): void {
    const { device } = this;
    const { createPipelineLayout, createShaderModule, createComputePipelineAsync } = device;
    const layouts = new WeakMap<GPUPipelineLayout, GPUBindGroupLayout>();
    device.createPipelineLayout = (descriptor) => {
      const made = createPipelineLayout.call(device, descriptor);
      const [layout] = descriptor.bindGroupLayouts;
      if (layout) layouts.set(made, layout);
      return made;
    };
    device.createShaderModule = (descriptor) =>
      createShaderModule.call(
        device,
        this.gate ? { ...descriptor, code: this.gate.pinned(descriptor.code) } : descriptor,
      );
    device.createComputePipelineAsync = async (descriptor) => {
      const pipeline = await createComputePipelineAsync.call(device, descriptor);
      const layout = descriptor.layout === "auto" ? undefined : layouts.get(descriptor.layout);
      if (descriptor.compute.entryPoint) this.kernelNames.set(pipeline, descriptor.compute.entryPoint);
      if (layout && descriptor.compute.entryPoint)
        await this.gate?.check(descriptor.compute.entryPoint, pipeline, layout);
      return pipeline;
    };
  }

  private overrideQueue(): void {
    const { queue } = this.device;
    queue.submit = (buffers) => {
      this.realiseScopes();
      for (const buffer of buffers) {
        if (buffer instanceof CommandList) {
          for (const command of buffer.commands) this.stream.append(command);
          if (buffer.commands.length > 0) this.openEncoders -= 1;
          this.stream.submitted();
        } else {
          if (this.finished.delete(buffer)) this.openEncoders -= 1;
          this.stream.writeAll();
          this.stream.submit([buffer]);
        }
      }
      if (this.isPlain) this.stream.flush();
    };
    queue.writeBuffer = ((buffer: GPUBuffer, offset: number, data: BufferSource, dataOffset = 0, size?: number) => {
      this.realiseScopes();
      this.write(buffer, offset, data, dataOffset, size);
    }) as GPUQueue["writeBuffer"];
    queue.onSubmittedWorkDone = () => {
      this.stream.flush();
      if (this.observer) return this.observer.waited(this.native.onSubmittedWorkDone(), false);
      // The client waits for the prompt before it draws, and then for the token: one way to the GPU and back is enough.
      if (this.isPromptUndrawn && !this.isPlain) {
        this.isPromptUndrawn = false;
        return Promise.resolve(undefined);
      }
      return this.native.onSubmittedWorkDone();
    };
  }

  // --- Buffers ---

  private createBuffer(descriptor: GPUBufferDescriptor): GPUBuffer {
    const isSmall =
      descriptor.size <= SMALL_BYTES && descriptor.usage === tensorUsage() && !descriptor.mappedAtCreation;
    const again = isSmall && !this.isPlain ? this.spare.get(descriptor.size)?.pop() : undefined;
    if (again) {
      counts.buffersReused += 1;
      this.lastCreated = stateOf(again);
      return again;
    }
    this.realiseScopes();
    const catcher = this.owner.catcherOf?.(descriptor.size);
    const buffer = this.native.createBuffer(catcher ? { ...descriptor, size: 4 } : descriptor);
    counts.buffers += 1;
    const state = new BufferState(buffer, catcher);
    this.lastCreated = state;
    const destroy = buffer.destroy.bind(buffer);
    buffer.destroy = () => this.destroyBuffer(state, isSmall, destroy);
    if (descriptor.usage & GPUBufferUsage.MAP_READ) this.overrideMapping(buffer, state);
    return buffer;
  }

  private destroyBuffer(state: BufferState, isSmall: boolean, destroy: () => undefined): undefined {
    const { buffer } = state;
    this.stream.forget(state);
    state.content = undefined;
    state.handle = 0;
    if (isSmall && !this.isPlain && !this.observer && state.dependents.size === 0 && !this.isLost) {
      const spare = this.spare.get(buffer.size) ?? [];
      this.spare.set(buffer.size, spare);
      if (spare.length < MAX_SPARE) {
        if (!spare.includes(buffer)) spare.push(buffer);
        return;
      }
    }
    if (state.usedIn === this.stream.serial) this.stream.flush();
    for (const dependent of [...state.dependents]) dependent.bufferGone();
    this.groups.drop(state);
    if (this.observer) this.observer.keep(destroy);
    else destroy();
    return undefined;
  }

  private overrideMapping(buffer: GPUBuffer, state: BufferState): void {
    const mapAsync = buffer.mapAsync.bind(buffer);
    const getMappedRange = buffer.getMappedRange.bind(buffer);
    const unmap = buffer.unmap.bind(buffer);
    buffer.mapAsync = (mode, offset, size) => {
      const { hostRead } = state;
      if (hostRead) return hostRead.arrival as Promise<undefined>;
      this.isPromptUndrawn = false;
      this.stream.flush();
      const mapped = mapAsync(mode, offset, size);
      this.onWait?.();
      return (this.observer?.waited(mapped, true) ?? mapped) as Promise<undefined>;
    };
    buffer.getMappedRange = (offset, size) =>
      state.hostRead ? Int32Array.of(state.hostRead.value()).buffer : getMappedRange(offset, size);
    buffer.unmap = () => {
      if (state.hostRead) state.hostRead = undefined;
      else unmap();
    };
  }

  private write(buffer: GPUBuffer, offset: number, data: BufferSource, dataOffset: number, size?: number): void {
    const state = stateOf(buffer);
    if (state && isCaught(state, offset, bytesOf(data, dataOffset, size), this.keepsWrites)) return;
    if (state && !this.isPlain) {
      state.keeper?.touched(state, true);
      const bytes = bytesOf(data, dataOffset, size);
      if (offset === 0 && bytes.byteLength % 4 === 0 && bytes.byteLength <= Math.min(HELD_WRITE_BYTES, buffer.size)) {
        const copy = bytes.slice();
        if (buffer.size <= SMALL_BYTES && buffer.usage === uniformUsage()) state.content = copy;
        else {
          state.content = buffer.size === copy.byteLength && buffer.size <= SMALL_BYTES ? copy : undefined;
          this.stream.hold(state, copy);
        }
        return;
      }
      if (state.pending) this.stream.write(state);
      state.content = undefined;
    }
    this.stream.flush();
    (this.native.writeBuffer as (...args: unknown[]) => void)(buffer, offset, data, dataOffset, size);
  }

  /** Uniform buffers hold nothing on the device, because kept ones take their place. These are needed after all. */
  private writeUniforms({ entries }: GPUBindGroupDescriptor): void {
    for (const { resource } of entries) {
      const buffer = (resource as GPUBufferBinding).buffer as GPUBuffer | undefined;
      const state = buffer && stateOf(buffer);
      if (state?.content && buffer?.usage === uniformUsage()) {
        this.stream.flush();
        this.native.writeBuffer(buffer, 0, state.content);
      }
    }
  }

  // --- Encoders ---

  createNative(descriptor?: GPUCommandEncoderDescriptor): GPUCommandEncoder {
    return this.native.createCommandEncoder(descriptor);
  }

  opened(): void {
    this.openEncoders += 1;
  }

  finishedNative(buffer: GPUCommandBuffer): void {
    this.finished.add(buffer);
  }

  encoded(command: Command): Command | undefined {
    const { recording } = this;
    this.encodedCount += 1;
    if (command.kind === "launch") {
      this.lastLaunch = command;
      if (recording?.isDry) {
        recording.launches.push(command); // to be run later, on other buffers
        return undefined;
      }
      for (const state of command.group.storage) state.keeper?.touched(state);
      recording?.launches.push(command);
      return this.ordered(command);
    }
    if (recording) recording.isClean = false;
    const { source, target } = command;
    target.keeper?.touched(target);
    if (target.buffer.usage & GPUBufferUsage.MAP_READ && command.sourceOffset === 0 && command.targetOffset === 0) {
      target.hostRead = source.keeper?.read(source, command.bytes);
      if (target.hostRead) return undefined;
    } else {
      source.keeper?.touched(source);
    }
    return this.ordered(command);
  }

  /**
   * What a library issues runs in the order in which it issues it (the contract of TVM's devices): it need not wait
   * for the client's `submit`, and the GPU begins while the rest is encoded.
   */
  private ordered(command: Command): Command | undefined {
    if (this.openEncoders > 0 || !this.owner.isCalling()) return command;
    this.stream.append(command);
    this.stream.submitted();
    return undefined;
  }

  encodedElsewhere(command: Command): void {
    if (this.recording) this.recording.isClean = false;
    this.stream.flush();
    const states = command.kind === "launch" ? command.group.storage : [command.source, command.target];
    for (const state of states) {
      this.stream.write(state);
      state.content = undefined;
    }
  }

  // --- Error scopes ---

  private realiseScopes(): void {
    for (const filter of this.heldScopes) {
      this.native.pushErrorScope(filter);
      this.realScopes += 1;
    }
    this.heldScopes = [];
  }
}
