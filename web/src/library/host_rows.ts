// The table of per-layer embeddings in a file, and a window of the rows of a call in its place (docs/adr/0024).
//
// The client makes every tensor of the package on the device and writes its bytes. Those of the table get a buffer of four
// bytes, and what is written goes to the file. When the client calls a function that reads the table, the function is given
// other parameters: the client's, with the window's tensors in the place of the table's.
import type { Handle } from "./abi";
import { Calls, CPU_DEVICE } from "./calls";
import type { BufferState, Catcher, Dependent } from "../gpu/buffers";
import type { Call, Library, RowWindow, Stage, TableRows } from "./library";
import type { RowFile } from "./row_file";
import { type Kept, RowReader, type Split } from "./row_reader";
import { because, counts } from "../stats";
import type { Piece } from "./table_index";

/** What the library says of its table. */
interface Table {
  readonly pad_token_id: number;
  readonly splits: readonly { readonly rows: number; readonly tensors: readonly string[] }[];
}

interface Metadata {
  readonly params: readonly { readonly name: string; readonly shape: readonly number[]; readonly dtype: string }[];
  readonly prefill_chunk_size: number;
  readonly per_layer_embedding?: Table;
}

/** Rows of a call on the device, one tensor for each of a split's. */
interface Window {
  /** The client's parameters, and the same with the window. */
  readonly of: Handle;
  readonly params: Handle;
  readonly host: readonly Handle[];
  readonly device: readonly Handle[];
}

const ALLOCATE = "runtime.TVMTensorAllocWithScope";
const COPY = "runtime.TVMTensorCopyFromTo";
const HEADER_BYTES = 24; // of an object, before a shape's sizes, or a tensor's address
/** Arguments of the functions that read the table; the last is the parameters. */
const ARGUMENTS = { decode: 3, prefill: 5 } as const;
type Reader = keyof typeof ARGUMENTS;

export class HostRows implements TableRows, Dependent {
  private readonly kept = new Map<BufferState, Kept>();
  private readonly windows = new Map<string, Window>();
  private library: Library | undefined;
  private table: { pad: number; splits: Split[]; reader: RowReader } | undefined;
  private allocate: Handle = 0;
  private bytes = 0;
  private hasEnded = false;
  private chunkRows: number | undefined;
  /** The tensor that is made now. */
  private making: Piece | undefined;

  constructor(
    private readonly pieces: readonly Piece[],
    private readonly file: RowFile,
    private readonly onEnd: (rows: HostRows) => void,
  ) {}

  get isUsed(): boolean {
    return this.kept.size > 0;
  }

  /** Whether it is for this library: the one that makes the table's tensors. */
  isFor(library: Library): boolean {
    return this.library === undefined || this.library === library;
  }

  // --- The client loads the table ---

  around(library: Library, stage: Stage | undefined, call: Call, run: () => number): number {
    if (this.isUsed && (stage === "decode" || stage === "prefill")) return this.withRows(stage, call, run);
    if (stage !== undefined || call.count !== 4 || this.table) return run();
    if (call.handle !== this.allocatorOf(library)) return run();
    this.making = this.pieceOf(library, call);
    try {
      return run();
    } finally {
      this.making = undefined;
      if (this.library?.device) this.library.device.keepsWrites = true;
    }
  }

  private allocatorOf(library: Library): Handle {
    if (this.library === library && this.allocate) return this.allocate;
    const found = Calls.of(library).global(ALLOCATE);
    if (this.library === library) this.allocate = found;
    return found;
  }

  /** The tensor of the table that a call allocates. */
  private pieceOf(library: Library, { args }: Call): Piece | undefined {
    const [sizes, count] = library.copyOut(library.value(args).handle + HEADER_BYTES, 2);
    const words = library.copyOut(sizes! >>> 0, 2 * count!);
    const shape = Array.from({ length: count! }, (_, i) => words[2 * i]!);
    return this.pieces.find((piece) => String(piece.shape) === String(shape));
  }

  /** Takes what is written to the buffer that `library` makes now; undefined for a buffer of its own. */
  catcherOf(library: Library, bytes: number): Catcher | undefined {
    const { making } = this;
    if (!making || Math.ceil(making.nbytes / 4) * 4 !== bytes) return undefined; // on the host: no buffer is made
    this.making = undefined;
    this.library = library;
    const { nbytes } = making;
    const kept: Kept = { at: this.bytes, nbytes, rowBytes: nbytes / making.shape[0]!, memory: undefined };
    this.bytes += nbytes;
    let isNew = true;
    return (offset, data, stand) => {
      if (isNew) {
        this.kept.set(stand, kept);
        stand.dependents.add(this);
        counts.tableBytesOnHost += nbytes;
      }
      isNew = false;
      this.store(kept, offset, data);
    };
  }

  private store(kept: Kept, offset: number, data: Uint8Array): void {
    const { nbytes } = kept;
    const bytes = data.subarray(0, Math.max(0, nbytes - offset)); // the queue takes whole words
    if (!kept.memory) {
      try {
        const before = this.file.bytesKept;
        this.file.write(bytes, kept.at + offset);
        counts.tableBytesKept += this.file.bytesKept - before;
        return;
      } catch (error) {
        because(`rows of per-layer embeddings are kept in memory: ${String(error)}`);
        kept.memory = new Uint8Array(nbytes);
        if (offset > 0) this.file.read(kept.memory.subarray(0, offset), kept.at);
      }
    }
    kept.memory.set(bytes, offset);
  }

  // --- The client calls a function that reads the table ---

  private withRows(stage: Reader, call: Call, run: () => number): number {
    const library = this.library!;
    const place = call.args + (ARGUMENTS[stage] - 1) * library.found.any_bytes;
    if (call.count !== ARGUMENTS[stage])
      throw new Error(`${stage} is called with ${call.count} arguments, expected ${ARGUMENTS[stage]}`);
    const before = library.copyOut(place, 4);
    const ids = this.idsOf(stage, call, before[2]! >>> 0);
    const window = this.windowFor(stage, before[2]! >>> 0, stage === "decode" ? 1 : this.chunk);
    this.fill(window, ids);
    const words = before.slice();
    words[2] = window.params;
    library.copyIn(place, words);
    try {
      return run();
    } finally {
      library.copyIn(place, before);
    }
  }

  /**
   * The tokens whose rows the call reads: at a picture's or a sound's the pad token. One that the table lacks is token 0, as
   * Gemma 3n has it; Gemma 4's library does not read its row.
   */
  private idsOf(stage: Reader, call: Call, params: Handle): number[] {
    this.table ??= this.readTable(params);
    const rows = this.table.splits.reduce((sum, split) => sum + split.rows, 0);
    const ids = this.hostWords(call, stage === "decode" ? 0 : 1).map((id) => (id < rows ? id : 0));
    if (stage === "decode") return ids;
    const modalities = this.hostWords(call, 2);
    return ids.map((id, i) => (modalities[i] === 0 ? id : this.table!.pad));
  }

  /** Integers of a tensor that the host wrote. */
  private hostWords(call: Call, index: number): number[] {
    const library = this.library!;
    const tensor = library.value(call.args + index * library.found.any_bytes).handle;
    const count = Calls.of(library)
      .sizes(tensor)
      .reduce((product, size) => product * size, 1);
    const written = library.argument(call, index)?.written;
    if (!written || written.byteLength < 4 * count)
      throw new Error(
        "the host does not know the tokens of a call, whose rows of per-layer embeddings it has to bring",
      );
    return Array.from(new Int32Array(written.slice(0, 4 * count).buffer));
  }

  private metadata(): Metadata {
    return JSON.parse(this.library!.readMetadata() ?? "{}") as Metadata;
  }

  /** Where the table's tensors are kept, by the client's parameters. */
  private readTable(params: Handle): { pad: number; splits: Split[]; reader: RowReader } {
    const library = this.library!;
    const { params: names, per_layer_embedding: table } = this.metadata();
    if (!table) {
      throw new Error(
        "the library takes no rows of per-layer embeddings from the host; hint: compile the package again, or load it " +
          "without useRowsFromHost",
      );
    }
    const calls = Calls.of(library);
    const keptAs = (name: string): Kept => {
      const item = calls.item(
        params,
        names.findIndex((each) => each.name === name),
      );
      const kept = this.kept.get(library.bufferOf(item)!);
      calls.release(item);
      if (!kept) throw new Error(`${name} is on the device: the package at the address of useRowsFromHost is another`);
      return kept;
    };
    const splits = table.splits.map(({ rows, tensors }) => ({ rows, kept: tensors.map(keptAs) }));
    return { pad: table.pad_token_id, splits, reader: new RowReader(splits, this.file) };
  }

  /** Tokens of a prompt's call at most. */
  private get chunk(): number {
    this.chunkRows ??= this.metadata().prefill_chunk_size;
    return this.chunkRows;
  }

  windowOf(params: Handle, rows: number): RowWindow {
    const of = [...this.windows.values()].find((each) => each.params === params)?.of ?? params;
    this.table ??= this.readTable(of);
    const window = this.windowFor(`rows ${rows}`, of, rows);
    return { params: window.params, write: (ids) => this.writeAfter(window, ids) };
  }

  private windowFor(purpose: string, params: Handle, rows: number): Window {
    const key = `${purpose},${params}`;
    let window = this.windows.get(key);
    if (!window) {
      window = this.makeWindow(params, rows);
      this.windows.set(key, window);
    }
    return window;
  }

  /** Recorded launches keep the number of rows and the buffers: every function has a window of its own. */
  private makeWindow(params: Handle, least: number): Window {
    const library = this.library!;
    const calls = Calls.of(library);
    const { params: all, per_layer_embedding: table } = this.metadata();
    const [first] = table!.splits;
    let rows = least;
    while (table!.splits.some((split) => split.rows === rows)) rows += 1; // as many as a split has mean the split
    const shapeOf = (name: string) => all.find((each) => each.name === name)!;
    const make = (name: string, where?: typeof CPU_DEVICE) => {
      const { shape, dtype } = shapeOf(name);
      return calls.tensor([rows, ...shape.slice(1)], dtype, where);
    };
    const device = first!.tensors.map((name) => make(name));
    const host = first!.tensors.map((name) => make(name, CPU_DEVICE));
    const kinds = new Map(table!.splits.flatMap(({ tensors }) => tensors.map((name, kind) => [name, kind])));
    const items = all.map(({ name }, i) => {
      const kind = kinds.get(name);
      return kind === undefined ? calls.item(params, i) : device[kind]!;
    });
    const array = calls.array(items);
    calls.release(...all.flatMap(({ name }, i) => (kinds.has(name) ? [] : [items[i]!])));
    return { of: params, params: array, host, device };
  }

  /** The rows of `ids` in a window that no call of the client's reads: nothing of the client's has to be submitted before. */
  private writeAfter({ device }: Window, ids: readonly number[]): void {
    const library = this.library!;
    // The queue takes whole words.
    const rows = device.map((_, kind) => new Uint8Array(Math.ceil((ids.length * this.rowBytes(kind)) / 4) * 4));
    this.table!.reader.read(ids, rows);
    for (const [kind, tensor] of device.entries()) {
      const state = library.bufferOf(tensor);
      if (!state) throw new Error("a window of rows is not known");
      library.device!.native.writeBuffer(state.buffer, 0, rows[kind]!);
    }
  }

  /**
   * The rows of `ids` in the window, after all that reads the rows of before: what has been collected is handed over first, so
   * that the device works on the chunk before this one while its rows are read.
   */
  private fill(window: Window, ids: readonly number[]): void {
    const library = this.library!;
    const calls = Calls.of(library);
    const { stream } = library.device!;
    stream.flush();
    const rows = window.host.map((host, kind) => {
      const [address] = library.copyOut(host + HEADER_BYTES, 1);
      return new Uint8Array(library.exports.memory.buffer, address! >>> 0, ids.length * this.rowBytes(kind));
    });
    this.table!.reader.read(ids, rows);
    for (const [kind, host] of window.host.entries()) {
      stream.flush();
      // The client's own copy: it hands over what it has not submitted yet.
      calls.call(calls.global(COPY), [calls.object(host), calls.object(window.device[kind]!)]);
      const state = library.bufferOf(window.device[kind]!);
      if (state) stream.write(state);
    }
  }

  private rowBytes(kind: number): number {
    return this.table!.splits[0]!.kept[kind]!.rowBytes;
  }

  // --- End ---

  /** The model goes, and its table with it. */
  bufferGone(): void {
    this.end();
  }

  end(): void {
    if (this.hasEnded) return;
    this.hasEnded = true;
    for (const [state, { nbytes }] of this.kept) {
      state.dependents.delete(this);
      counts.tableBytesOnHost -= nbytes;
    }
    for (const { params, host, device } of this.windows.values())
      for (const handle of [params, ...host, ...device]) this.library!.releaseLater(handle);
    this.windows.clear();
    this.kept.clear();
    this.file.close();
    this.onEnd(this);
  }
}
