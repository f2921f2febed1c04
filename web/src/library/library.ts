// One instance of a model library, with the module between it and the client.
import { type DriverExports, type Handle, type Interface, isNoted, roleOf, type Role, stringAt } from "./abi";
import type { Call, KeptBeginnings, RowWindow, Value } from "./call";
import { type BufferState, stateOf } from "../gpu/buffers";
import type { Device } from "../gpu/device";
import type { KernelGate } from "../gpu/kernel_gate";
import { Kernels } from "./kernels";
import { RandomNumbers } from "./random";
import { because, counts } from "../stats";

export type { Call, RowWindow, Value } from "./call";

type SafeCall = (self: number, args: number, count: number, result: number) => number;

/** A state and weights that the client decodes with. */
export interface Conversation {
  readonly library: Library;
  readonly device: Device;
  readonly state: Handle;
  readonly params: Handle;
}

/** Answers the calls of a conversation's steps. */
export interface Driver {
  /** Whether a call of `role` on this buffer belongs to the step that is under way. */
  owns(role: Role, buffer: BufferState): boolean;
  call(role: Role, call: Call): number;
  /** Its end, after which what the client holds is right. */
  finish(): void;
}

/** A function that the client calls for a prompt, or in turn for a token. */
export type Stage = Role | "prefill";

/** Is told of such calls, and may run them in its own way. */
export interface CallObserver {
  /** The status of the call; undefined where it shall go its usual way. */
  called(stage: Stage, call: Call): number | undefined;
}

/** Stands in every call of a library whose table of per-layer embeddings is not on the device. */
export interface TableRows {
  /** Whether the table is the host's by now. */
  readonly isUsed: boolean;
  /** Runs a call, with what it needs of the table. */
  around(library: Library, stage: Stage | undefined, call: Call, run: () => number): number;
  /** A window of so many rows or more, beside those of the client's calls; `params`: as the client passes them, or with a window. */
  windowOf(params: Handle, rows: number): RowWindow;
}

/** What a library is given by who opens it. */
export interface LibraryHost {
  /** Whose callback runs from now on; returns whose did. */
  enter(library: Library | undefined): Library | undefined;
  /** What the kernels of a library with these metadata pass; undefined for nothing. */
  gateOf(metadata: string, device: Device): KernelGate | undefined;
  /** The driver of a conversation, which calls `onEnd` at its end; undefined where there can be none. */
  driverOf(conversation: Conversation, onEnd: () => void): Driver | undefined;
  /** Of the library that is called now; undefined where its table is on the device. */
  rowsOf?(library: Library): TableRows | undefined;
}

export class Library {
  device: Device | undefined;
  private readonly roles = new Map<Handle, Role>();
  private readonly buffers = new Map<number, GPUBuffer>();
  private readonly drivers = new Map<string, Driver>();
  /** References to give back when the library is entered the next time: not while it frees something. */
  private readonly released: Handle[] = [];
  words = new Int32Array(0);
  doubles = new Float64Array(0);
  readonly random = new RandomNumbers();
  private readonly kernels = new Kernels(
    () => this.device!,
    (handle) => this.buffers.get(handle),
  );
  private describesKernels: Handle = 0;
  private metadata: Handle = 0; // the function that costs least
  private prefill: Handle = 0;
  private scratchAddress = 0;
  /** The virtual machine, of which functions can be asked for. */
  machine: Handle = 0;
  private isPlain = false;
  private callbacks = 0; // that run now
  observer: CallObserver | undefined;
  /** Beginnings of prompts; undefined where none are kept. */
  kept: KeptBeginnings | undefined;

  constructor(
    readonly exports: DriverExports,
    readonly found: Interface,
    private readonly host: LibraryHost,
  ) {}

  makePlain(): void {
    this.finishDrivers();
    this.kept?.destroy();
    this.isPlain = true;
  }

  /** No step is under way any more that would go on by itself. */
  finishDrivers(): void {
    for (const driver of [...this.drivers.values()]) driver.finish();
  }

  /** Whether the client has loaded it onto a device that works, and the module takes part. */
  get isDriven(): boolean {
    return !this.isPlain && this.device !== undefined && !this.device.isLost;
  }

  /** Room in the library's memory for what its functions write. */
  get scratch(): number {
    this.scratchAddress ||= this.exports.TVMWasmAllocSpace(SCRATCH_BYTES);
    return this.scratchAddress;
  }

  releaseLater(handle: Handle): void {
    this.released.push(handle);
  }

  // --- Calls of the client into the library ---

  call(handle: Handle, args: number, count: number, result: number): number {
    const rows = this.host.rowsOf?.(this);
    if (!rows) return this.answer(handle, args, count, result);
    const stage = handle === this.prefill ? "prefill" : this.roles.get(handle);
    return rows.around(this, stage, { handle, args, count, result }, () => this.answer(handle, args, count, result));
  }

  private answer(handle: Handle, args: number, count: number, result: number): number {
    while (this.released.length > 0) this.exports.TVMFFIObjectDecRef(this.released.pop()!);
    const role = this.isPlain ? undefined : this.roles.get(handle);
    if (role === "sample") this.observeDraw({ handle, args, count, result });
    if (handle === this.metadata && !this.isPlain) return this.describe(handle, args, count, result);
    if (this.device)
      this.device.isPromptUndrawn = handle === this.prefill || (this.device.isPromptUndrawn && role === undefined);
    const stage = handle === this.prefill && !this.isPlain ? "prefill" : role;
    const seen = stage && this.observer?.called(stage, { handle, args, count, result });
    if (seen !== undefined) return seen;
    if (stage === "prefill" && this.kept) return this.kept.prefill({ handle, args, count, result });
    if (role !== undefined && this.device && !this.device.isLost) {
      const driver = this.driverFor(role, args, count);
      if (driver) return driver.call(role, { handle, args, count, result });
    }
    return this.run(handle, args, count, result);
  }

  /** The client reads the library's metadata, which describe the test of the device. */
  private describe(handle: Handle, args: number, count: number, result: number): number {
    const status = this.run(handle, args, count, result);
    if (status !== 0 || !this.device || this.device.gate) return status;
    const text = this.text(result);
    if (text !== undefined) this.device.gate = this.host.gateOf(text, this.device);
    return status;
  }

  /** The library's metadata; undefined before the client has asked for them. */
  readMetadata(): string | undefined {
    if (this.metadata === 0) return undefined;
    const result = this.scratch;
    this.copyIn(result, new Int32Array(4));
    if (this.exports.TVMFFIFunctionCall(this.metadata, result + 16, 0, result) !== 0) return undefined;
    const text = this.text(result);
    this.exports.TVMFFIObjectDecRef(this.value(result).handle);
    return text;
  }

  /** A string that a function returned. */
  private text(result: number): string | undefined {
    const { type, handle } = this.value(result);
    if (type !== this.found.types.string) return undefined;
    const [address, bytes] = this.copyOut(handle + OBJECT_HEADER_BYTES, 2);
    const copy = new Uint8Array(this.exports.memory.buffer).slice(address! >>> 0, (address! >>> 0) + (bytes! >>> 0));
    return new TextDecoder().decode(copy);
  }

  /** The client draws with the number in the third argument. */
  private observeDraw(call: Call): void {
    const word = this.word(call, 2);
    if (word === undefined) because("the client's random numbers are not known on the host");
    else this.random.observe(new Float32Array(Int32Array.of(word).buffer)[0]!);
  }

  /** The function of the library itself. */
  run(handle: Handle, args: number, count: number, result: number): number {
    const status = this.exports.TVMFFIFunctionCall(handle, args, count, result);
    if (status !== 0) return status;
    if (this.value(result).type === this.found.types.function) this.noteFunction(args, count, result);
    else if (handle === this.describesKernels) this.kernels.describe(this.text(result) ?? "{}");
    return status;
  }

  /** A call that returned a function and was given a name that the module knows. */
  private noteFunction(args: number, count: number, result: number): void {
    const { types, any_bytes } = this.found;
    for (let i = 0; i < count; i++) {
      const { type, handle } = this.value(args + i * any_bytes);
      if (type !== types.raw_string) continue;
      const name = stringAt(this.exports.memory, handle);
      const role = roleOf(this.found, name);
      const made = this.value(result).handle;
      if (name === KERNEL_DESCRIPTIONS && this.describesKernels === 0) {
        this.exports.TVMFFIObjectIncRef(made);
        this.describesKernels = made;
      }
      if (role === undefined || this.roles.has(made) || (isNoted(role) && this[role] !== 0)) continue;
      if (role === "decode") this.noteMachine(args, count);
      // The reference keeps the address from being given to another object.
      this.exports.TVMFFIObjectIncRef(made);
      if (isNoted(role)) this[role] = made;
      else this.roles.set(made, role);
    }
  }

  /** A function was asked for by name: the first argument is the module that has it. */
  private noteMachine(args: number, count: number): void {
    const { type, handle } = this.value(args);
    if (this.machine !== 0 || count !== 3 || type < this.found.types.object_from) return;
    this.exports.TVMFFIObjectIncRef(handle);
    this.machine = handle;
  }

  /**
   * Makes TVM's virtual machine let go of the last call's arguments, which it holds until its next call; false if it
   * cannot be asked to, as within a call: the machine's calls do not nest.
   */
  releaseArguments(): boolean {
    if (this.metadata === 0 || this.callbacks > 0) return false;
    const result = this.scratch;
    this.copyIn(result, new Int32Array(4));
    if (this.exports.TVMFFIFunctionCall(this.metadata, result + 16, 0, result) !== 0) return false;
    const { type, handle } = this.value(result);
    if (type >= this.found.types.object_from) this.exports.TVMFFIObjectDecRef(handle);
    return true;
  }

  private driverFor(role: Role, args: number, count: number): Driver | undefined {
    const { types, any_bytes } = this.found;
    const at = (i: number) => this.value(args + i * any_bytes);
    if (role !== "decode") {
      if (count === 0 || at(0).type !== types.tensor) return undefined;
      const buffer = this.bufferOf(at(0).handle);
      for (const driver of this.drivers.values()) if (buffer && driver.owns(role, buffer)) return driver;
      return this.lastDriver;
    }
    if (count !== 3 || at(0).type !== types.tensor) {
      because(`${this.found.functions.decode} is called with other arguments than the module knows`);
      return undefined;
    }
    const [state, params] = [at(1).handle, at(2).handle];
    const key = `${state},${params}`;
    let driver = this.drivers.get(key);
    if (!driver) {
      const conversation = { library: this, device: this.device!, state, params };
      const made = this.host.driverOf(conversation, () => this.drivers.delete(key));
      if (!made) return undefined;
      driver = made;
      this.drivers.set(key, driver);
    }
    this.lastDriver = driver;
    return driver;
  }

  /** Of the sampler's calls on logits that are nobody's: a prompt's, whose sample shows the random numbers. */
  private lastDriver: Driver | undefined;

  driverEnded(driver: Driver): void {
    if (this.lastDriver === driver) this.lastDriver = undefined;
  }

  // --- Calls of the library into the client's runtime ---

  calledBack(original: SafeCall, self: number, args: number, count: number, result: number): number {
    const before = this.host.enter(this);
    this.callbacks += 1;
    const { device } = this;
    if (device) device.lastCreated = undefined;
    try {
      const isDriven = device !== undefined && !device.isPlain && !device.isLost && device.openEncoders === 0;
      if (isDriven && this.kernels.isKnown(self)) {
        this.refresh();
        const launch = this.kernels.launch(self, this, args, count);
        if (launch) {
          device.encoded(launch);
          counts.directLaunches += 1;
          return 0;
        }
      }
      const encodedBefore = device?.encodedCount;
      const status = original(self, args, count, result);
      if (status !== 0 || !this.device) return status;
      const { lastCreated, encodedCount, lastLaunch } = this.device;
      if (lastCreated) this.noteBuffer(lastCreated, result);
      else if (isDriven && lastLaunch && encodedCount === encodedBefore! + 1) {
        this.refresh();
        this.kernels.learn(self, this, args, count, lastLaunch);
      }
      return status;
    } finally {
      this.callbacks -= 1;
      this.host.enter(before);
    }
  }

  /** The client's runtime frees a function of its own, whose number it may give to another. */
  callbackGone(self: number): void {
    this.kernels.forget(self);
  }

  /** A callback made one buffer and returned a number: the runtime's number of it. */
  private noteBuffer(state: BufferState, result: number): void {
    const { type } = this.value(result);
    const { int, float } = this.found.types;
    if (type !== int && type !== float) return;
    const index = type === float ? this.doubles[(result + 8) >> 3]! : this.words[(result + 8) >> 2]!;
    state.handle = index;
    this.buffers.set(index, state.buffer);
  }

  // --- Reading the library's memory ---

  /** The value at an address. */
  value(address: number): Value {
    this.refresh();
    return { type: this.words[address >> 2]!, handle: this.words[(address >> 2) + 2]! >>> 0 };
  }

  copyOut(address: number, words: number): Int32Array {
    this.refresh();
    return this.words.slice(address >> 2, (address >> 2) + words);
  }

  copyIn(address: number, words: Int32Array): void {
    this.refresh();
    this.words.set(words, address >> 2);
  }

  private refresh(): void {
    const { buffer } = this.exports.memory;
    if (this.words.buffer === buffer) return;
    this.words = new Int32Array(buffer);
    this.doubles = new Float64Array(buffer);
  }

  /** The buffer of a tensor, or of the first tensor of an array; undefined if the module does not know it. */
  bufferOf(object: Handle): BufferState | undefined {
    const index = this.exports.gemma4_driver_buffer(object);
    const buffer = index < 0 ? undefined : this.buffers.get(index);
    const state = buffer && stateOf(buffer);
    return state?.handle === index ? state : undefined;
  }

  /** The buffer of a call's argument, if it is a tensor that the module knows. */
  argument({ args, count }: Call, index: number): BufferState | undefined {
    if (index >= count) return undefined;
    const { type, handle } = this.value(args + index * this.found.any_bytes);
    return type === this.found.types.tensor ? this.bufferOf(handle) : undefined;
  }

  /** The number that a one-element tensor among the arguments holds, if the host wrote it. */
  word(call: Call, index: number): number | undefined {
    const content = this.argument(call, index)?.content;
    if (content?.byteLength !== 4) return undefined;
    return new DataView(content.buffer, content.byteOffset, 4).getInt32(0, true);
  }

  /** Whether its rows of per-layer embeddings come from the host. */
  get hasRowsOnHost(): boolean {
    return this.host.rowsOf?.(this)?.isUsed ?? false;
  }

  /** A window of rows of per-layer embeddings that come from the host; undefined where the table is on the device. */
  rowWindow(params: Handle, rows: number): RowWindow | undefined {
    const found = this.host.rowsOf?.(this);
    return found?.isUsed ? found.windowOf(params, rows) : undefined;
  }

  /** The buffers of a state: positions, rotary values, then keys and values; undefined if one is unknown. */
  buffersOfState(state: Handle): BufferState[] | undefined {
    const count = this.exports.gemma4_driver_state(state, this.scratch, SCRATCH_BYTES / 4);
    if (count < 2 || count > SCRATCH_BYTES / 4) return undefined;
    const found: BufferState[] = [];
    for (const index of this.copyOut(this.scratch, count)) {
      const buffer = this.buffers.get(index);
      if (!buffer) return undefined;
      found.push(stateOf(buffer)!);
    }
    return found;
  }
}

/** The runtime's function that describes the kernels of a library. */
const KERNEL_DESCRIPTIONS = "webgpu.get_fmap";

/** Of an object of TVM's FFI, before a string's address and length. */
const OBJECT_HEADER_BYTES = 24;

/** For the numbers of all buffers of a state, or a step's positions and rotary values. */
export const SCRATCH_BYTES = 32768;
