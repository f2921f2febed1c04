// Keys, values and logits of whole prefill chunks, kept on the device: a prompt that begins as one before it gets them by
// a copy, also where another conversation has overwritten the state in between, and is the same to the last bit, for
// each chunk is found by its ids and by those of all chunks before it, which are what a forward depends on.
import type { Handle } from "../library/abi";
import type { Call, KeptBeginnings } from "../library/call";
import { Calls, int } from "../library/calls";
import { type Library, SCRATCH_BYTES } from "../library/library";
import type { BufferState } from "../gpu/buffers";
import { COPY_DST, COPY_SRC, MAP_READ, READ } from "../gpu/constants";
import type { Device } from "../gpu/device";
import { because, counts } from "../stats";

/** Of `prefill_tokens`. */
const [IDS, MODALITIES, STATE, PARAMS, ARGUMENTS] = [1, 2, 3, 4, 5] as const;
const FLOAT_BYTES = 4;
/** Of a forward: the contents of `positions`. */
const POSITION_BYTES = 16;
const COPIED = COPY_SRC | COPY_DST;

/** A chunk behind the chunks of its parents. */
export interface Chunk {
  readonly parent: Chunk | undefined;
  readonly name: string;
  readonly children: Map<string, Chunk>;
  readonly buffer: GPUBuffer;
  /** Of keys and values that it holds: another state's do not fit. */
  readonly layout: string;
  /** Whether the device had room for it, and has it. */
  isThere: boolean;
  /** Ends when that is known. */
  arrival: Promise<unknown>;
}

/** Keys or values of a layer: positions lie one after the other, and those of a ring begin anew behind its last row. */
interface Rows {
  readonly state: BufferState;
  readonly rows: number;
  readonly rowBytes: number;
}

/** What chunks are kept of. */
interface Place {
  readonly state: Handle;
  readonly params: Handle;
  readonly device: Device;
  readonly buffers: readonly BufferState[];
  readonly entries: readonly Rows[];
  /** Tokens of a whole chunk. */
  readonly chunk: number;
  readonly layout: string;
}

/** The chunk that the next one may follow: of a state with so many tokens, at this version. */
interface End {
  readonly chunk: Chunk;
  readonly length: number;
  readonly version: number;
}

export class KeptChunks implements KeptBeginnings {
  private place: Place | undefined;
  private refused: Handle = 0;
  private readonly first = new Map<string, Chunk>();
  /** What was used longest ago comes first, and a chunk before those that it follows. */
  private readonly used = new Set<Chunk>();
  private end: End | undefined;
  private bytes = 0;
  /** Of prompts since the last `takeUsed`. */
  private readonly recent = new Set<Chunk>();

  constructor(
    private readonly library: Library,
    private mostBytes: number,
  ) {}

  /** Stands in a call of `prefill_tokens`. */
  prefill(call: Call): number {
    const run = () => this.library.run(call.handle, call.args, call.count, call.result);
    const { end } = this;
    this.end = undefined;
    const place = this.placeOf(call);
    const name = place && this.nameOf(call, place);
    if (!place || name === undefined) return run();
    const { exports } = this.library;
    const length = exports.gemma4_driver_length(place.state);
    const version = exports.gemma4_driver_version(place.state);
    const follows = end?.length === length && ((end.version + 1) | 0) === version;
    if (length !== 0 && !follows) return run();
    const parent = length === 0 ? undefined : end!.chunk;
    const found = (parent?.children ?? this.first).get(name);
    if (found && !found.isThere) return run();
    const status = found ? this.handOut(found, place, length, call) : run();
    const chunk = found ?? (status === 0 ? this.keep(parent, name, place, length, call) : undefined);
    if (chunk) {
      this.touch(chunk);
      this.recent.add(chunk);
      this.end = { chunk, length: length + place.chunk, version };
    }
    return status;
  }

  /** Lets go of all chunks. */
  destroy(): void {
    for (const chunk of this.used) this.drop(chunk);
    this.place = this.end = undefined;
  }

  // --- Chunks that outlive the page ---

  /** Whether the device is gone, and all chunks with it. */
  get isLost(): boolean {
    return this.library.device?.isLost ?? false;
  }

  /** Chunks that prompts have used since the last call, each behind those that it follows. */
  takeUsed(): Chunk[] {
    const found = [...this.recent].filter((chunk) => this.used.has(chunk));
    this.recent.clear();
    return found;
  }

  /** What a chunk holds, in pieces of so many bytes; ends early where the chunk has to go. */
  async *contents(chunk: Chunk, pieceBytes: number): AsyncGenerator<Uint8Array<ArrayBuffer>> {
    await chunk.arrival;
    const { device } = this.library;
    if (!device) return;
    const { native, stream } = device;
    const size = Math.min(pieceBytes, chunk.buffer.size);
    const staging = native.createBuffer({ size, usage: MAP_READ | COPY_DST });
    try {
      for (let at = 0; at < chunk.buffer.size && this.used.has(chunk) && !device.isLost; at += size) {
        const bytes = Math.min(size, chunk.buffer.size - at);
        const encoder = native.createCommandEncoder();
        encoder.copyBufferToBuffer(chunk.buffer, at, staging, 0, bytes);
        stream.submit([encoder.finish()]);
        await staging.mapAsync(READ, 0, bytes);
        const piece = new Uint8Array(staging.getMappedRange(0, bytes)).slice();
        staging.unmap();
        yield piece;
      }
    } finally {
      staging.destroy();
    }
  }

  /**
   * Takes a chunk that was kept elsewhere, to stand behind `parent`; undefined where there is no room for it. Rejects, and takes
   * nothing, where `pieces` do.
   */
  async admit(
    parent: Chunk | undefined,
    name: string,
    layout: string,
    size: number,
    pieces: AsyncIterable<Uint8Array<ArrayBuffer>>,
  ): Promise<Chunk | undefined> {
    const { device } = this.library;
    const isWanted = () => !device?.isLost && (!parent || this.used.has(parent));
    const before = () => (parent?.children ?? this.first).get(name);
    if (!device || !isWanted() || this.bytes + size > this.mostBytes) return before();
    if (this.place && this.place.layout !== layout) return undefined;
    const { native } = device;
    native.pushErrorScope("out-of-memory");
    const buffer = native.createBuffer({ size, usage: COPIED });
    const error = native.popErrorScope();
    this.bytes += size;
    counts.keptBytes += size;
    const chunk: Chunk = { parent, name, children: new Map(), buffer, layout, isThere: true, arrival: error };
    try {
      if ((await error) !== null) return undefined;
      let at = 0;
      for await (const piece of pieces) {
        if (!isWanted()) return undefined;
        native.writeBuffer(buffer, at, piece);
        at += piece.byteLength;
      }
      if (!isWanted() || before() || at !== size) return before();
      (parent?.children ?? this.first).set(name, chunk);
      this.touch(chunk);
      return chunk;
    } finally {
      if (!this.used.has(chunk)) this.letGo(chunk);
    }
  }

  // --- What a call is of ---

  private object({ args }: Call, index: number): Handle {
    return this.library.value(args + index * this.library.found.any_bytes).handle;
  }

  private placeOf(call: Call): Place | undefined {
    const { library } = this;
    const { device } = library;
    if (call.count !== ARGUMENTS || !device || device.isLost || device.openEncoders > 0) return undefined;
    const [state, params] = [this.object(call, STATE), this.object(call, PARAMS)];
    const buffers = library.buffersOfState(state);
    const { place } = this;
    const isKnown = place?.state === state && place.params === params && place.device === device;
    if (isKnown && buffers?.every((buffer, i) => buffer === place.buffers[i])) return place;
    if (place) this.destroy();
    if (!buffers) return undefined;
    const described = this.describe(state, buffers);
    if (!described) {
      if (this.refused !== state) because("no beginnings are kept: the state's layers lie in parts");
      this.refused = state;
      return undefined;
    }
    this.place = { state, params, device, buffers, ...described };
    for (const chunk of [...this.used]) if (chunk.layout !== described.layout) this.drop(chunk);
    return this.place;
  }

  /** The entries of a state; undefined where its full layers are divided, whose parts begin at other positions. */
  private describe(
    state: Handle,
    buffers: readonly BufferState[],
  ): Pick<Place, "entries" | "chunk" | "layout"> | undefined {
    const { library } = this;
    const calls = Calls.of(library);
    const { exports, scratch } = library;
    const sizesOf = (name: string, index?: number): number[] => {
      const more = index === undefined ? [] : [int(index)];
      const { handle } = calls.call(calls.global(name), [calls.object(state), ...more]);
      const sizes = [...calls.sizes(handle), calls.elementBytes(handle)];
      calls.release(handle);
      return sizes;
    };
    const chunk = sizesOf("gemma4_kv_rotary")[0]!;
    const entries = buffers.slice(2).map((buffer, i): Rows => {
      const [rows, heads, dim, bytes] = sizesOf(i % 2 ? "gemma4_kv_value" : "gemma4_kv_key", i >> 1);
      return { state: buffer, rows: rows!, rowBytes: heads! * dim! * bytes! };
    });
    const most = Math.max(...entries.map(({ rows }) => rows));
    if (POSITION_BYTES + exports.gemma4_driver_step_bytes(state) > SCRATCH_BYTES) return undefined;
    const isWhole = exports.gemma4_driver_step(state, most, scratch, scratch + POSITION_BYTES) !== 0; // beyond the context
    const isPlain = entries.every(({ rows, rowBytes }) => rows >= chunk && rowBytes % 4 === 0);
    const layout = [chunk, ...entries.map(({ rowBytes }) => rowBytes)].join();
    return isWhole && isPlain ? { entries, chunk, layout } : undefined;
  }

  /** The ids of a whole chunk of text; undefined for others, or where they are not known. */
  private nameOf(call: Call, { chunk }: Place): string | undefined {
    const { library } = this;
    if (Calls.of(library).sizes(this.object(call, IDS)).at(-1) !== chunk) return undefined;
    const [ids, modalities] = [IDS, MODALITIES].map((index) => library.argument(call, index)?.written);
    const bytes = chunk * 4;
    if (ids?.byteLength !== bytes || modalities?.byteLength !== bytes || modalities.some(Boolean)) return undefined;
    return new Int32Array(ids.slice().buffer).join();
  }

  // --- Copies ---

  /** Calls `copy` for each run of rows: where it lies in the state, and where among those of a chunk. */
  private static eachRun(
    { entries, chunk }: Place,
    position: number,
    copy: (state: BufferState, at: number, kept: number, bytes: number) => void,
  ): number {
    let kept = 0;
    for (const { state, rows, rowBytes } of entries) {
      for (let done = 0; done < chunk; ) {
        const row = (position + done) % rows;
        const count = Math.min(chunk - done, rows - row);
        copy(state, row * rowBytes, kept, count * rowBytes);
        kept += count * rowBytes;
        done += count;
      }
    }
    return kept;
  }

  private keep(
    parent: Chunk | undefined,
    name: string,
    place: Place,
    position: number,
    { result }: Call,
  ): Chunk | undefined {
    const { library } = this;
    const calls = Calls.of(library);
    const tensor = library.exports.gemma4_driver_tensor(library.value(result).handle);
    const logits = library.bufferOf(tensor);
    if (tensor === 0 || !logits) return undefined;
    const logitsBytes = calls.sizes(tensor).reduce((a, b) => a * b) * FLOAT_BYTES;
    const size = KeptChunks.eachRun(place, position, () => undefined) + logitsBytes;
    if (size > this.mostBytes && this.used.size === 0)
      because(`no beginnings are kept: a chunk takes ${size} bytes, and ${this.mostBytes} are for them`);
    if (!this.makeRoom(size, parent)) return undefined;
    const { native, stream } = place.device;
    stream.flush();
    native.pushErrorScope("out-of-memory");
    native.pushErrorScope("validation"); // of copies into a buffer that there was no room for
    const buffer = native.createBuffer({ size, usage: COPIED });
    const encoder = native.createCommandEncoder();
    KeptChunks.eachRun(place, position, ({ buffer: from }, at, kept, bytes) =>
      encoder.copyBufferToBuffer(from, at, buffer, kept, bytes),
    );
    encoder.copyBufferToBuffer(logits.buffer, 0, buffer, size - logitsBytes, logitsBytes);
    stream.submit([encoder.finish()]);
    const errors = Promise.all([native.popErrorScope(), native.popErrorScope()]);
    const { layout } = place;
    const chunk: Chunk = { parent, name, children: new Map(), buffer, layout, isThere: false, arrival: errors };
    chunk.arrival = errors.then(
      (found) =>
        this.arrived(
          chunk,
          found.every((error) => error === null),
        ),
      () => this.arrived(chunk, false),
    );
    (parent?.children ?? this.first).set(name, chunk);
    this.bytes += size;
    counts.keptBytes += size;
    return chunk;
  }

  /** The device has a chunk, or no room for it, and so for no more than there are. */
  private arrived(chunk: Chunk, isThere: boolean): void {
    chunk.isThere = isThere;
    if (isThere || !this.used.has(chunk)) return;
    this.mostBytes = this.bytes - chunk.buffer.size;
    because("the device has no more room for beginnings of prompts");
    const follows = (one: Chunk | undefined): boolean => one !== undefined && (one === chunk || follows(one.parent));
    for (const one of [...this.used]) if (follows(one)) this.drop(one);
    this.end = undefined;
  }

  private handOut({ buffer }: Chunk, place: Place, position: number, { result }: Call): number {
    const { library } = this;
    const calls = Calls.of(library);
    const { native, stream } = place.device;
    for (const state of place.buffers) state.keeper?.touched(state); // as the launches of a prompt would
    const rowBytes = KeptChunks.eachRun(place, position, () => undefined);
    const tensor = calls.tensor([1, 1, (buffer.size - rowBytes) / FLOAT_BYTES], "float32");
    const logits = library.bufferOf(tensor)!;
    stream.flush();
    const encoder = native.createCommandEncoder();
    KeptChunks.eachRun(place, position, ({ buffer: to }, at, kept, bytes) =>
      encoder.copyBufferToBuffer(buffer, kept, to, at, bytes),
    );
    encoder.copyBufferToBuffer(buffer, rowBytes, logits.buffer, 0, buffer.size - rowBytes);
    stream.submit([encoder.finish()]);
    logits.content = logits.written = undefined;
    const array = calls.array([tensor]);
    calls.release(tensor);
    const [type, handle] = calls.object(array);
    library.copyIn(result, Int32Array.of(type, 0, handle, 0));
    counts.keptTokens += place.chunk;
    return 0;
  }

  // --- Room ---

  /** A chunk is used now, if it is still there, with those that it follows. */
  refresh(chunk: Chunk): void {
    if (this.used.has(chunk)) this.touch(chunk);
  }

  private touch(chunk: Chunk): void {
    for (let one: Chunk | undefined = chunk; one; one = one.parent) {
      this.used.delete(one);
      this.used.add(one);
    }
  }

  /** Drops what was used longest ago, but none of the chunks that the new one follows; false if that is not enough. */
  private makeRoom(size: number, parent: Chunk | undefined): boolean {
    const held = new Set<Chunk>();
    for (let one = parent; one; one = one.parent) held.add(one);
    for (const chunk of this.used) {
      if (this.bytes + size <= this.mostBytes) break;
      if (held.has(chunk)) return false;
      this.drop(chunk);
    }
    return this.bytes + size <= this.mostBytes;
  }

  private drop(chunk: Chunk): void {
    const { parent, name } = chunk;
    (parent?.children ?? this.first).delete(name);
    this.used.delete(chunk);
    this.recent.delete(chunk);
    this.letGo(chunk);
  }

  private letGo({ buffer }: Chunk): void {
    this.bytes -= buffer.size;
    counts.keptBytes -= buffer.size;
    buffer.destroy();
  }
}
