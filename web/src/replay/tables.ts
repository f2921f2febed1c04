// What steps read and draw, on the device: a row of inputs for each slot, and the tokens between the slots.
//
// Slot k reads its token from entry k and draws into entry k + 1, around in a ring, so that steps follow each other
// without the host. One more row is for a step by itself: its token comes from the row, what it draws goes into the
// client's own tensor.
import type { DriverExports, Handle } from "../library/abi";
import type { Library } from "../library/library";
import type { Native } from "../gpu/native";
import type { Binding, Region, Slot } from "./recording";

/** Steps of one submission at most. */
export const SLOTS = 8;
const SINGLE = SLOTS;
const POSITION_BYTES = 16;

type Input = Extract<Region, "token" | "positions" | "rotary" | "temperature" | "uniform" | "top_p">;

/** Numbers of a step as they lie in memory. */
export interface StepInputs {
  readonly position: number;
  readonly temperature: number;
  readonly uniform: number;
  readonly topP: number;
}

export class Tables {
  readonly single: Slot;
  readonly slots: readonly Slot[];
  readonly tokens: GPUBuffer;
  readonly tokenStride: number;
  private readonly inputs: GPUBuffer;
  private readonly rowBytes: number;
  private readonly offsets = {} as Record<Input, number>;
  private readonly rotaryBytes: number;

  constructor(
    private readonly library: Library,
    private readonly native: Native,
    private readonly state: Handle,
    alignment: number,
    drawn: GPUBuffer,
  ) {
    this.rotaryBytes = library.exports.gemma4_driver_step_bytes(state);
    const sizes: Record<Input, number> = {
      token: 4,
      positions: POSITION_BYTES,
      rotary: Math.max(4, this.rotaryBytes),
      temperature: 4,
      uniform: 4,
      top_p: 4,
    };
    let offset = 0;
    for (const [name, size] of Object.entries(sizes) as [Input, number][]) {
      this.offsets[name] = offset;
      offset += Math.ceil(size / alignment) * alignment;
    }
    this.rowBytes = offset;
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_DST | GPUBufferUsage.COPY_SRC;
    this.inputs = native.createBuffer({ size: this.rowBytes * (SLOTS + 1), usage });
    this.tokenStride = alignment;
    this.tokens = native.createBuffer({ size: alignment * SLOTS, usage });
    const row = (index: number): Record<Input, Binding> =>
      Object.fromEntries(
        (Object.entries(sizes) as [Input, number][]).map(([name, size]) => [
          name,
          { buffer: this.inputs, offset: index * this.rowBytes + this.offsets[name], size },
        ]),
      ) as Record<Input, Binding>;
    const entry = (index: number): Binding => ({ buffer: this.tokens, offset: (index % SLOTS) * alignment, size: 4 });
    this.single = { ...row(SINGLE), drawn: { buffer: drawn, offset: 0, size: drawn.size } };
    this.slots = Array.from({ length: SLOTS }, (_, k) => ({ ...row(k), token: entry(k), drawn: entry(k + 1) }));
  }

  destroy(): void {
    this.inputs.destroy();
    this.tokens.destroy();
  }

  /** The token that a slot reads, where no slot before it draws it. */
  writeToken(slot: number, token: number): void {
    this.native.writeBuffer(this.tokens, slot * this.tokenStride, Int32Array.of(token));
  }

  /** Inputs of slots `first`, `first + 1`, ... around the ring. */
  writeRows(first: number, steps: readonly StepInputs[]): void {
    for (let done = 0; done < steps.length; ) {
      const at = (first + done) % SLOTS;
      const count = Math.min(steps.length - done, SLOTS - at);
      const bytes = new Uint8Array(count * this.rowBytes);
      for (let i = 0; i < count; i++) this.fill(bytes, i * this.rowBytes, steps[done + i]!);
      this.native.writeBuffer(this.inputs, at * this.rowBytes, bytes);
      done += count;
    }
  }

  // --- The row of a single step, a part for each function that reads it ---

  writeStep(token: number, position: number): void {
    const bytes = new Uint8Array(this.offsets.temperature);
    new DataView(bytes.buffer).setInt32(this.offsets.token, token, true);
    this.fillPosition(bytes, 0, position);
    this.writeSingle("token", bytes);
  }

  writeTemperature(temperature: number): void {
    this.writeSingle("temperature", words(temperature));
  }

  writeDraw(uniform: number, topP: number): void {
    const bytes = new Uint8Array(this.offsets.top_p - this.offsets.uniform + 4);
    const view = new DataView(bytes.buffer);
    view.setInt32(0, uniform, true);
    view.setInt32(bytes.byteLength - 4, topP, true);
    this.writeSingle("uniform", bytes);
  }

  private writeSingle(from: Input, bytes: Uint8Array): void {
    this.native.writeBuffer(this.inputs, SINGLE * this.rowBytes + this.offsets[from], bytes as Uint8Array<ArrayBuffer>);
  }

  private fill(bytes: Uint8Array, row: number, { position, temperature, uniform, topP }: StepInputs): void {
    this.fillPosition(bytes, row, position);
    const view = new DataView(bytes.buffer);
    view.setInt32(row + this.offsets.temperature, temperature, true);
    view.setInt32(row + this.offsets.uniform, uniform, true);
    view.setInt32(row + this.offsets.top_p, topP, true);
  }

  /** What the library itself would upload for a token at this position. */
  private fillPosition(bytes: Uint8Array, row: number, position: number): void {
    const { exports, scratch }: { exports: DriverExports; scratch: number } = this.library;
    exports.gemma4_driver_step(this.state, position, scratch, scratch + POSITION_BYTES);
    const memory = new Uint8Array(exports.memory.buffer, scratch, POSITION_BYTES + this.rotaryBytes);
    bytes.set(memory.subarray(0, POSITION_BYTES), row + this.offsets.positions);
    bytes.set(memory.subarray(POSITION_BYTES), row + this.offsets.rotary);
  }
}

const words = (value: number): Uint8Array => new Uint8Array(Int32Array.of(value).buffer);
