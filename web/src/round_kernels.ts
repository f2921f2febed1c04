// The launches of a round of guesses: recorded without running them, and bound to buffers of the module's own.
//
// A round at position p: guess j reads token j and a state and writes token j + 1 and the state for the next guess; then
// the model runs on all tokens at once, and a token is drawn from each row of logits.
import type { Handle } from "./abi";
import type { BufferState, Dependent } from "./buffers";
import { Calls } from "./calls";
import type { Device } from "./device";
import type { Library } from "./library";
import type { Recorded } from "./recorder";
import { FunctionRecord, type Region, Scratch } from "./recording";
import type { Launch, ReadyLaunch } from "./stream";

/** Guesses of a round at most: the kernels of a step of a few rows are for one row more. */
export const MAX_DRAFTS = 8;
export const MAX_ROWS = MAX_DRAFTS + 1;

export interface RoundOwner {
  readonly library: Library;
  readonly device: Device;
  readonly state: Handle;
  readonly params: Handle;
  readonly stateBuffers: readonly BufferState[];
  readonly scratch: Scratch;
  readonly dependent: Dependent;
}

/** Cells of the buffer of inputs, each at an offset that can be bound. */
const CELLS = { guessPositions: 0, positions: 1, temperature: 2, topP: 3, uniform: 4 } as const;
const EMBED = "embed";

/** Numbers of a round as they lie in memory. */
export interface RoundInputs {
  readonly position: number;
  readonly token: number;
  readonly temperature: number;
  readonly topP: number;
  readonly uniforms: readonly number[];
}

export class RoundKernels {
  readonly tokens: readonly GPUBuffer[];
  readonly ids: GPUBuffer;
  readonly drawn: GPUBuffer;
  readonly stride: number;
  readonly hidden: readonly GPUBuffer[];
  readonly states: GPUBuffer;
  readonly stateBytes: number;
  private readonly logits: GPUBuffer;
  private readonly rowBytes: number;
  private readonly inputs: GPUBuffer;
  private readonly rotary: GPUBuffer;
  private readonly rotaryBytes: number;
  private readonly calls: Calls;
  private readonly functions: Record<"embed" | "draft" | "verify", Handle>;
  private readonly guesses: ReadyLaunch[][] = [];
  private readonly forwards: ReadyLaunch[][] = [];
  private readonly draws: ReadyLaunch[][] = [];
  private readonly records: FunctionRecord[] = [];
  private readonly buffers: GPUBuffer[] = [];
  private readonly scratch: Scratch;
  /** Not the driver itself: what ends with these records is not what ends with its own. */
  private readonly dependent: Dependent;

  /** Throws where the library cannot be recorded. */
  constructor(
    private readonly owner: RoundOwner,
    softmax: Recorded,
    sample: Recorded,
  ) {
    const { library, device, state, dependent } = owner;
    this.calls = Calls.of(library);
    this.scratch = new Scratch(device.native);
    this.dependent = { bufferGone: () => dependent.bufferGone() };
    this.functions = {
      embed: this.calls.compiled(EMBED),
      draft: this.calls.compiled("draft_token"),
      verify: this.calls.compiled("verify_tokens"),
    };
    this.stride = device.device.limits.minStorageBufferOffsetAlignment;
    const one = this.forward(1);
    this.rowBytes = 4 * one.vocabulary;
    this.stateBytes = 4 * one.width;
    this.rotaryBytes = library.exports.gemma4_driver_step_bytes(state);
    this.tokens = Array.from({ length: MAX_ROWS }, () => this.make(4));
    this.ids = this.make(4 * MAX_ROWS);
    this.drawn = this.make(this.stride * MAX_ROWS);
    this.hidden = [this.make(this.stateBytes), this.make(this.stateBytes)];
    this.states = this.make(this.stateBytes * MAX_ROWS);
    this.logits = this.make(this.rowBytes * MAX_ROWS);
    this.inputs = this.make(this.stride * (CELLS.uniform + MAX_ROWS));
    this.rotary = this.make(Math.max(4, this.rotaryBytes * MAX_ROWS));
    try {
      this.bindDraws(softmax, sample);
      this.forwards[1] = this.bindForward(one.record, 1);
    } catch (error) {
      this.destroy();
      throw error;
    }
  }

  private bindDraws(softmax: Recorded, sample: Recorded): void {
    if (this.rowBytes % this.stride) throw new Error("rows of logits begin where no buffer can be bound");
    const logitsOfStep = this.decodeOutput(softmax);
    if (!logitsOfStep) throw new Error("the sampler reads its logits in a way that the module does not know");
    const choose = softmax.record.withRegion(logitsOfStep, "logits", this.owner.scratch);
    if (typeof choose === "string") throw new Error(choose);
    this.keep(choose);
    for (let row = 0; row < MAX_ROWS; row++) {
      const cell = (index: number) => ({ buffer: this.inputs, offset: index * this.stride, size: 4 });
      const logits = { buffer: this.logits, offset: row * this.rowBytes, size: this.rowBytes };
      const drawn = { buffer: this.drawn, offset: row * this.stride, size: 4 };
      this.draws.push([
        ...choose.bind({ temperature: cell(CELLS.temperature), logits }),
        ...sample.record.bind({ uniform: cell(CELLS.uniform + row), top_p: cell(CELLS.topP), drawn }),
      ]);
    }
  }

  /** Launches of the guess after token `index` of a round. */
  guess(index: number): readonly ReadyLaunch[] {
    if (this.guesses.length === 0) {
      const record = this.draft();
      const positions = { buffer: this.inputs, offset: CELLS.guessPositions * this.stride, size: 16 };
      const whole = (buffer: GPUBuffer) => ({ buffer, offset: 0, size: buffer.size });
      for (let j = 0; j < MAX_DRAFTS; j++)
        this.guesses.push(
          record.bind({
            positions,
            token: whole(this.tokens[j]!),
            drawn: whole(this.tokens[j + 1]!),
            hidden: whole(this.hidden[j % 2]!),
            next_hidden: whole(this.hidden[(j + 1) % 2]!),
            rotary: { buffer: this.rotary, offset: 0, size: Math.max(4, this.rotaryBytes) },
          }),
        );
    }
    return this.guesses[index]!;
  }

  /** Launches of the model on `rows` tokens, and of a draw from each row. */
  run(rows: number): readonly ReadyLaunch[] {
    this.forwards[rows] ??= this.bindForward(this.forward(rows).record, rows);
    return [...this.forwards[rows]!, ...this.draws.slice(0, rows).flat()];
  }

  /** Hands the inputs of a round to the device. */
  write({ position, token, temperature, topP, uniforms }: RoundInputs): void {
    const { native } = this.owner.device;
    const rows = uniforms.length;
    const bytes = new Int32Array((this.stride / 4) * (CELLS.uniform + rows));
    const put = (cell: number, values: readonly number[]) => bytes.set(values, (cell * this.stride) / 4);
    put(CELLS.guessPositions, [position, 1, position, 0]);
    put(CELLS.positions, [position, rows, position + rows, 0]);
    put(CELLS.temperature, [temperature]);
    put(CELLS.topP, [topP]);
    for (const [row, uniform] of uniforms.entries()) put(CELLS.uniform + row, [uniform]);
    native.writeBuffer(this.inputs, 0, bytes);
    native.writeBuffer(this.tokens[0]!, 0, Int32Array.of(token));
    native.writeBuffer(this.ids, 0, Int32Array.of(token));
    if (this.rotaryBytes > 0) native.writeBuffer(this.rotary, 0, this.rotaryValues(position, rows));
  }

  destroy(): void {
    for (const record of this.records) record.release(this.dependent);
    for (const buffer of this.buffers) buffer.destroy();
    this.scratch.destroy();
  }

  private rotaryValues(position: number, rows: number): Uint8Array<ArrayBuffer> {
    const { library, state } = this.owner;
    const { exports, scratch } = library;
    const values = new Uint8Array(rows * this.rotaryBytes);
    for (let row = 0; row < rows; row++) {
      exports.gemma4_driver_step(state, position + row, scratch, scratch + 16);
      values.set(new Uint8Array(exports.memory.buffer, scratch + 16, this.rotaryBytes), row * this.rotaryBytes);
    }
    return values;
  }

  private bindForward(record: FunctionRecord, rows: number): ReadyLaunch[] {
    return record.bind({
      ids: { buffer: this.ids, offset: 0, size: 4 * rows },
      positions: { buffer: this.inputs, offset: CELLS.positions * this.stride, size: 16 },
      rotary: { buffer: this.rotary, offset: 0, size: Math.max(4, this.rotaryBytes * rows) },
      all_logits: { buffer: this.logits, offset: 0, size: this.rowBytes * rows },
      states: { buffer: this.states, offset: 0, size: this.stateBytes * rows },
    });
  }

  /** The logits that the recorded softmax reads: its largest buffer that it does not write. */
  private decodeOutput({ record, output }: Recorded): BufferState | undefined {
    return [...record.external].find((state) => state !== output && state.buffer.size >= this.rowBytes);
  }

  // --- Recording ---

  /** `embed` and `verify_tokens` of so many tokens. */
  private forward(rows: number): { record: FunctionRecord; vocabulary: number; width: number } {
    const { calls, functions, owner } = this;
    const flat = calls.tensor([rows], "int32");
    const ids = calls.view(flat, [1, rows], "int32");
    const made: Handle[] = [flat, ids];
    const params = calls.object(owner.params);
    let launches: Launch[];
    try {
      launches = this.launchesOf(() => {
        const embedded = calls.call(functions.embed, [calls.object(flat), params]).handle;
        made.push(embedded);
        const width = calls.width(embedded);
        const viewed = calls.view(embedded, [1, rows, width], "float32");
        made.push(viewed);
        const args = [calls.object(viewed), calls.object(ids), calls.object(owner.state), params];
        const result = calls.call(functions.verify, args).handle;
        made.push(result, calls.item(result, 0), calls.item(result, 1));
      });
      const [logits, states] = [this.bufferOf(made.at(-2)!), this.bufferOf(made.at(-1)!)];
      const record = this.recordOf(launches, [
        [this.bufferOf(flat), "ids"],
        [owner.stateBuffers[0]!, "positions"],
        [owner.stateBuffers[1]!, "rotary"],
        [logits, "all_logits"],
        [states, "states"],
      ]);
      return { record, vocabulary: calls.width(made.at(-2)!), width: calls.width(made.at(-1)!) };
    } finally {
      calls.release(...made);
    }
  }

  /** `embed` and `draft_token`. */
  private draft(): FunctionRecord {
    const { calls, functions, owner } = this;
    const width = this.stateBytes / 4;
    const made = [calls.tensor([1], "int32"), calls.tensor([1, width], "float32"), calls.tensor([4], "int32")];
    const [token, hidden, positions] = made as [Handle, Handle, Handle];
    try {
      const launches = this.launchesOf(() => {
        const embedded = calls.call(functions.embed, [calls.object(token), calls.object(owner.params)]).handle;
        made.push(embedded);
        const args = [embedded, hidden, positions, owner.state, owner.library.drafter];
        const result = calls.call(
          functions.draft,
          args.map((object) => calls.object(object)),
        ).handle;
        made.push(result, calls.item(result, 0), calls.item(result, 1));
      });
      return this.recordOf(launches, [
        [this.bufferOf(token), "token"],
        [this.bufferOf(hidden), "hidden"],
        [this.bufferOf(positions), "positions"],
        [owner.stateBuffers[1]!, "rotary"],
        [this.bufferOf(made.at(-2)!), "drawn"],
        [this.bufferOf(made.at(-1)!), "next_hidden"],
      ]);
    } finally {
      calls.release(...made);
    }
  }

  /** What `action` launches, none of which runs. */
  private launchesOf(action: () => void): Launch[] {
    const { device } = this.owner;
    const recording = { launches: [] as Launch[], isClean: true, isDry: true };
    device.recording = recording;
    try {
      action();
    } finally {
      device.recording = undefined;
    }
    if (!recording.isClean) throw new Error("the functions of the drafter do more than launch kernels");
    return recording.launches;
  }

  private recordOf(launches: Launch[], regions: [BufferState, Region][]): FunctionRecord {
    const { device, stateBuffers } = this.owner;
    const roles = { regions: new Map(regions), kept: new Set(stateBuffers.slice(2)) };
    const record = FunctionRecord.make(device.native, launches, roles, this.scratch);
    if (typeof record === "string") throw new Error(`a step of a few rows ${record}`);
    return this.keep(record);
  }

  private keep(record: FunctionRecord): FunctionRecord {
    record.dependOn(this.dependent);
    this.records.push(record);
    return record;
  }

  private bufferOf(tensor: Handle): BufferState {
    const found = this.owner.library.bufferOf(tensor);
    if (!found) throw new Error("a tensor of the library is not known");
    return found;
  }

  private make(size: number): GPUBuffer {
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_DST | GPUBufferUsage.COPY_SRC;
    const buffer = this.owner.device.native.createBuffer({ size, usage });
    this.buffers.push(buffer);
    return buffer;
  }
}
