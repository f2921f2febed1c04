// The launches of a round of drafts: recorded without running them, and bound to buffers of the module's own.
//
// A round at position p: draft j reads token j and a state and writes token j + 1 and the state for the next draft; then
// the model runs on all tokens at once, and a token is drawn from each row of logits. Two kernels of the module's own
// (next_round.ts) prepare the round that follows, so that it can be submitted before this one is read.
import type { Handle } from "../library/abi";
import type { Sampling } from "../replay/multi_step";
import type { BufferState, Dependent } from "../gpu/buffers";
import { Calls } from "../library/calls";
import type { Device } from "../gpu/device";
import type { Library, RowWindow } from "../library/library";
import type { Drafter } from "./drafter_state";
import {
  bindRoundKernel,
  CELLS,
  MAX_DRAFTS,
  MAX_ROWS,
  RECORD_BYTES,
  type RoundPipelines,
  sizesInMemory,
} from "./next_round";
import { type Binding, FunctionRecord, type Region, Scratch } from "../replay/recording";
import { RoundTable } from "./round_table";
import type { Launch, ReadyLaunch } from "../gpu/stream";

export interface RoundOwner {
  readonly library: Library;
  readonly drafter: Drafter;
  readonly device: Device;
  readonly state: Handle;
  readonly params: Handle;
  readonly stateBuffers: readonly BufferState[];
}

const EMBED = "embed";
const RECORD_OFFSET = 4 * MAX_ROWS; // behind the tokens that were drawn

/** Where rounds begin: numbers as they lie in memory, and the client's generator before the first draw. */
export interface FirstRound extends Sampling {
  readonly position: number;
  readonly token: number;
  readonly randomState: number;
}

/** The model on so many tokens, and the draws from its logits: what they launch. */
interface Forward {
  readonly model: FunctionRecord;
  readonly draws: FunctionRecord;
  readonly vocabulary: number;
  readonly width: number;
}

export class RoundKernels {
  readonly table: RoundTable;
  /** Rows of per-layer embeddings of a round's tokens, where they come from the host. */
  readonly window: RowWindow | undefined;
  private readonly stride: number;
  private readonly stateBytes: number;
  /** Drafts, a cell each; the tokens of the rows, next to each other. */
  private readonly drafted: GPUBuffer;
  private readonly ids: GPUBuffer;
  /** Tokens drawn from the rows, next to each other, and then the round's record. */
  private readonly drawn: GPUBuffer;
  private readonly hidden: readonly GPUBuffer[];
  private readonly states: GPUBuffer;
  private readonly logits: GPUBuffer;
  private readonly rowBytes: number;
  private readonly inputs: GPUBuffer;
  private readonly rotary: GPUBuffer;
  private readonly rotaryBytes: number;
  private readonly calls: Calls;
  private readonly functions: Record<"embed" | "draft" | "verify" | "draw", Handle>;
  /** Of each draft, and of rounds by their number of drafts. */
  private drafts: ReadyLaunch[][] = [];
  private readonly draftLaunches: ReadyLaunch[][] = [];
  /** Of rounds by their number of rows. */
  private readonly forwards: ReadyLaunch[][] = [];
  private readonly between: Record<keyof RoundPipelines, GPUBindGroup>;
  private readonly pipelines: RoundPipelines;
  private readonly records: FunctionRecord[] = [];
  private readonly buffers: GPUBuffer[] = [];
  private readonly scratch: Scratch;

  /** Throws where the library cannot be recorded. `dependent`: hears of these records' buffers, and of no others. */
  constructor(
    private readonly owner: RoundOwner,
    private readonly dependent: Dependent,
  ) {
    const { library, drafter, device, state } = owner;
    this.calls = Calls.of(library);
    if (!drafter.roundPipelines) throw new Error("the kernels between rounds are not there");
    this.pipelines = drafter.roundPipelines;
    this.scratch = new Scratch(device.native);
    this.functions = {
      embed: this.calls.compiled(EMBED),
      draft: this.calls.compiled("draft_token"),
      verify: this.calls.compiled("verify_tokens"),
      draw: this.calls.compiled("draw_rows"),
    };
    this.stride = device.device.limits.minStorageBufferOffsetAlignment;
    this.rotaryBytes = library.exports.gemma4_driver_step_bytes(state);
    this.window = library.rowWindow(owner.params, MAX_ROWS);
    this.table = new RoundTable(library, device.native, state, this.rotaryBytes);
    try {
      const one = this.forward(1);
      this.rowBytes = 4 * one.vocabulary;
      this.stateBytes = 4 * one.width;
      this.drafted = this.make(this.stride * MAX_DRAFTS);
      this.ids = this.make(4 * MAX_ROWS);
      this.drawn = this.make(RECORD_OFFSET + RECORD_BYTES);
      this.hidden = [this.make(this.stateBytes), this.make(this.stateBytes)];
      this.states = this.make(this.stateBytes * MAX_ROWS);
      this.logits = this.make(this.rowBytes * MAX_ROWS);
      this.inputs = this.make(this.uniformOffset + 4 * MAX_ROWS);
      this.rotary = this.make(Math.max(4, this.rotaryBytes * MAX_ROWS));
      this.between = this.bindBetween();
      this.forwards[1] = this.bindForward(one, 1);
    } catch (error) {
      this.destroy();
      throw error;
    }
  }

  /** The kernels that a round has between the drafts and the model, and after its draws. */
  private bindBetween(): Record<keyof RoundPipelines, GPUBindGroup> {
    const { native } = this.owner.device;
    const words = sizesInMemory({ stride: this.stride / 4, state: this.stateBytes / 4, rotary: this.rotaryBytes / 4 });
    const sizes = this.make(words.byteLength, GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST);
    native.writeBuffer(sizes, 0, words);
    const buffers = {
      inputs: this.inputs,
      ids: this.ids,
      drawn: this.drawn,
      states: this.states,
      hidden: this.hidden[0]!,
      table: this.table.buffer,
      rotary: this.rotary,
      drafts: this.drafted,
    };
    const bind = (name: keyof RoundPipelines) => bindRoundKernel(native, this.pipelines, name, sizes, buffers);
    return { gather_drafts: bind("gather_drafts"), next_round: bind("next_round") };
  }

  /** Launches of the first `count` drafts. */
  draft(count: number): readonly ReadyLaunch[] {
    if (count > 0 && this.drafts.length === 0) this.drafts = this.bindDrafts();
    this.draftLaunches[count] ??= this.drafts.slice(0, count).flat();
    return this.draftLaunches[count];
  }

  private bindDrafts(): ReadyLaunch[][] {
    const record = this.draftRecord();
    const positions = { buffer: this.inputs, offset: CELLS.draftPositions * this.stride, size: 16 };
    const whole = (buffer: GPUBuffer) => ({ buffer, offset: 0, size: buffer.size });
    const cell = (j: number): Binding => ({ buffer: this.drafted, offset: j * this.stride, size: 4 });
    return Array.from({ length: MAX_DRAFTS }, (_, j) =>
      record.bind({
        positions,
        token: j === 0 ? { buffer: this.ids, offset: 0, size: 4 } : cell(j - 1),
        drawn: cell(j),
        hidden: whole(this.hidden[j % 2]!),
        next_hidden: whole(this.hidden[(j + 1) % 2]!),
        rotary: { buffer: this.rotary, offset: 0, size: Math.max(4, this.rotaryBytes) },
      }),
    );
  }

  /** Launches after the drafts: the model on `rows` tokens, a draw from each row, what the next round reads. */
  run(rows: number): readonly ReadyLaunch[] {
    this.forwards[rows] ??= this.bindForward(this.forward(rows), rows);
    return this.forwards[rows];
  }

  /** Bytes of `copyDrafts`. */
  get draftBytes(): number {
    return this.drafted.size;
  }

  /** Copies the drafts, the launches of which come before. */
  copyDrafts(encoder: GPUCommandEncoder, target: GPUBuffer): void {
    encoder.copyBufferToBuffer(this.drafted, 0, target, 0, this.drafted.size);
  }

  /** The first `count` tokens among the bytes of `copyDrafts`. */
  readDrafts(bytes: ArrayBuffer, count: number): number[] {
    const words = new Int32Array(bytes);
    return Array.from({ length: count }, (_, j) => words[(j * this.stride) / 4]!);
  }

  /** Copies the record of a round whose launches come before. */
  copyRecord(encoder: GPUCommandEncoder, target: GPUBuffer): void {
    encoder.copyBufferToBuffer(this.drawn, RECORD_OFFSET, target, 0, RECORD_BYTES);
  }

  /** Hands the inputs of a first round, which has no drafts, to the device. */
  begin({ position, token, temperature, topP, randomState }: FirstRound): void {
    const { native } = this.owner.device;
    const { table } = this;
    table.begin(position, randomState);
    table.fill(position, position + MAX_ROWS);
    const bytes = new Int32Array((this.stride / 4) * CELLS.uniform + 1);
    const put = (cell: number, values: readonly number[]) => bytes.set(values, (cell * this.stride) / 4);
    put(CELLS.draftPositions, [position, 1, position, 0]);
    put(CELLS.positions, [position, 1, position + 1, 0]);
    put(CELLS.temperature, [temperature]);
    put(CELLS.topP, [topP]);
    put(CELLS.uniform, [table.uniformAt(position)]);
    native.writeBuffer(this.inputs, 0, bytes);
    native.writeBuffer(this.ids, 0, Int32Array.of(token));
    if (this.rotaryBytes > 0) native.writeBuffer(this.rotary, 0, table.angles(position).slice());
  }

  destroy(): void {
    for (const record of this.records) record.release(this.dependent);
    for (const buffer of this.buffers) buffer.destroy();
    this.table.destroy();
    this.scratch.destroy();
  }

  private bindForward({ model, draws }: Forward, rows: number): ReadyLaunch[] {
    const { gather_drafts, next_round } = this.pipelines;
    const slot = {
      ids: { buffer: this.ids, offset: 0, size: 4 * rows },
      positions: { buffer: this.inputs, offset: CELLS.positions * this.stride, size: 16 },
      rotary: { buffer: this.rotary, offset: 0, size: Math.max(4, this.rotaryBytes * rows) },
      all_logits: { buffer: this.logits, offset: 0, size: this.rowBytes * rows },
      states: { buffer: this.states, offset: 0, size: this.stateBytes * rows },
      temperature: { buffer: this.inputs, offset: CELLS.temperature * this.stride, size: 4 },
      top_p: { buffer: this.inputs, offset: CELLS.topP * this.stride, size: 4 },
      uniform: { buffer: this.inputs, offset: this.uniformOffset, size: 4 * rows },
      drawn: { buffer: this.drawn, offset: 0, size: 4 * rows },
    };
    return [
      { pipeline: gather_drafts, group: this.between.gather_drafts, x: rows, y: 1, z: 1 },
      ...model.bind(slot),
      ...draws.bind(slot),
      { pipeline: next_round, group: this.between.next_round, x: 1, y: 1, z: 1 },
    ];
  }

  // --- Recording ---

  /** `embed` and `verify_tokens` of so many tokens, and `draw_rows` from their logits. */
  private forward(rows: number): Forward {
    const { calls, functions, owner } = this;
    const flat = calls.tensor([rows], "int32");
    const ids = calls.view(flat, [1, rows], "int32");
    const made: Handle[] = [flat, ids];
    const params = calls.object(this.window?.params ?? owner.params);
    try {
      const launches = this.launchesOf(() => {
        const embedded = calls.call(functions.embed, [calls.object(flat), params]).handle;
        made.push(embedded);
        const width = calls.width(embedded);
        const viewed = calls.view(embedded, [1, rows, width], "float32");
        made.push(viewed);
        const args = [calls.object(viewed), calls.object(ids), calls.object(owner.state), params];
        const result = calls.call(functions.verify, args).handle;
        made.push(result, calls.item(result, 0), calls.item(result, 1));
      });
      const [logits, states] = made.slice(-2) as [Handle, Handle];
      const model = this.recordOf(launches, [
        [this.bufferOf(flat), "ids"],
        [owner.stateBuffers[0]!, "positions"],
        [owner.stateBuffers[1]!, "rotary"],
        [this.bufferOf(logits), "all_logits"],
        [this.bufferOf(states), "states"],
      ]);
      return { model, draws: this.draw(logits, rows), vocabulary: calls.width(logits), width: calls.width(states) };
    } finally {
      calls.release(...made);
    }
  }

  /** `draw_rows` from these logits. */
  private draw(logits: Handle, rows: number): FunctionRecord {
    const { calls } = this;
    const numbers = [1, rows, 1].map((count) => calls.tensor([count], "float32"));
    const made = [...numbers];
    try {
      const launches = this.launchesOf(() => {
        const [temperature, uniform, topP] = numbers as [Handle, Handle, Handle];
        const args = [logits, temperature, uniform, topP].map((object) => calls.object(object));
        made.push(calls.call(this.functions.draw, args).handle);
      });
      const [temperature, uniform, topP, drawn] = made.map((tensor) => this.bufferOf(tensor));
      return this.recordOf(launches, [
        [this.bufferOf(logits), "all_logits"],
        [temperature!, "temperature"],
        [uniform!, "uniform"],
        [topP!, "top_p"],
        [drawn!, "drawn"],
      ]);
    } finally {
      calls.release(...made);
    }
  }

  /** `embed` and `draft_token`. */
  private draftRecord(): FunctionRecord {
    const { calls, functions, owner } = this;
    const width = this.stateBytes / 4;
    const made = [calls.tensor([1], "int32"), calls.tensor([1, width], "float32"), calls.tensor([4], "int32")];
    const [token, hidden, positions] = made as [Handle, Handle, Handle];
    try {
      const launches = this.launchesOf(() => {
        const embedded = calls.call(functions.embed, [calls.object(token), calls.object(owner.params)]).handle;
        made.push(embedded);
        const args = [embedded, hidden, positions, owner.state, owner.drafter.weights];
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

  /** Where the random numbers of the rows are among the inputs, next to each other. */
  private get uniformOffset(): number {
    return this.stride * CELLS.uniform;
  }

  private make(
    size: number,
    usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_DST | GPUBufferUsage.COPY_SRC,
  ): GPUBuffer {
    const buffer = this.owner.device.native.createBuffer({ size, usage });
    this.buffers.push(buffer);
    return buffer;
  }
}
