import { beforeEach, describe, expect, it } from "vitest";
import { BufferState, type Catcher, stateOf } from "../../src/gpu/buffers";
import type { Device } from "../../src/gpu/device";
import type { Handle } from "../../src/library/abi";
import { HostRows } from "../../src/library/host_rows";
import type { Stage } from "../../src/library/library";
import type { RowFile } from "../../src/library/row_file";
import { counts } from "../../src/stats";
import { fakeBuffer } from "../fake_device";
import { fakeLibrary, type Given, INTERFACE } from "../fake_library";

const ALLOCATE = "runtime.TVMTensorAllocWithScope";
const CPU = 1;
const PAD = 1;
/** Two parts of different lengths, with two tensors each: rows of 8 and of 4 bytes. */
const SPLITS = [
  { rows: 3, tensors: ["table.a0", "table.b0"] },
  { rows: 2, tensors: ["table.a1", "table.b1"] },
];
const PARAMS = [
  { name: "table.b1", shape: [2, 1], dtype: "uint32" },
  { name: "embed", shape: [9, 9], dtype: "uint32" },
  { name: "table.a0", shape: [3, 2], dtype: "uint32" },
  { name: "table.b0", shape: [3, 1], dtype: "uint32" },
  { name: "table.a1", shape: [2, 2], dtype: "uint32" },
];
const TABLE = PARAMS.filter(({ name }) => name.startsWith("table")).map(({ name, shape }) => ({
  name,
  shape,
  nbytes: 4 * shape[0]! * shape[1]!,
}));
/** The word of a row of the table: which tensor, which row, which column. */
const wordOf = (kind: number, row: number, column: number) => 1000 * (kind + 1) + 10 * row + column;

class MemoryFile {
  readonly bytes = new Uint8Array(200);
  bytesKept = 0;
  isClosed = false;
  /** Writes that go well. */
  left = Number.POSITIVE_INFINITY;
  write(bytes: Uint8Array, at: number) {
    this.left -= 1;
    if (this.left < 0) throw new DOMException("no room", "QuotaExceededError");
    this.bytes.set(bytes, at);
  }
  read(bytes: Uint8Array, at: number) {
    bytes.set(this.bytes.subarray(at, at + bytes.byteLength));
  }
  close() {
    this.isClosed = true;
  }
}

function setUp(perLayer: object | undefined = { pad_token_id: PAD, splits: SPLITS }) {
  const file = new MemoryFile();
  const device = { keepsWrites: false, stream: { flush: () => undefined, write: () => undefined } };
  const fake = fakeLibrary(device as unknown as Device);
  const { library } = fake;
  const { exports } = library;
  Object.assign(library, { found: INTERFACE });
  library.readMetadata = () => JSON.stringify({ params: PARAMS, prefill_chunk_size: 3, per_layer_embedding: perLayer });
  const words = () => new Int32Array(exports.memory.buffer);
  const shapes = new Map<Handle, readonly number[]>();
  const made = new Map<Handle, readonly number[]>();
  const arrays = new Map<Handle, readonly Given[]>();
  fake.define("ffi.Shape", (given) => {
    const handle = fake.object();
    shapes.set(handle, given as number[]);
    return handle;
  });
  fake.define("ffi.Array", (given) => {
    const handle = fake.array(given as number[]);
    arrays.set(handle, given);
    return handle;
  });
  const allocate = fake.define(ALLOCATE, ([shape, , where]) => {
    const sizes = shapes.get(shape as Handle)!;
    const handle = fake.tensor(sizes);
    made.set(handle, sizes);
    if (where === CPU) words()[(handle + 24) >> 2] = exports.TVMWasmAllocSpace(4 * sizes[0]! * sizes[1]!);
    return handle;
  });
  /** Windows' words after a copy. */
  const copied = new Map<Handle, number[]>();
  fake.define("runtime.TVMTensorCopyFromTo", ([from, to]) => {
    const [rows, columns] = made.get(from as Handle)!;
    const begin = words()[((from as number) + 24) >> 2]! >> 2;
    copied.set(to as Handle, Array.from(words().subarray(begin, begin + rows! * columns!)));
    return 0;
  });
  const ended: HostRows[] = [];
  const rows = new HostRows(TABLE, file as unknown as RowFile, (each) => ended.push(each));
  const args = (given: readonly (readonly [type: number, handle: Handle])[]) => {
    const at = exports.TVMWasmAllocSpace(16 * given.length);
    for (const [i, [type, handle]] of given.entries()) words().set([type, 0, handle, 0], (at >> 2) + 4 * i);
    return at;
  };
  /** The client makes a tensor on the device and writes it; the buffer that it got. */
  const load = (shape: readonly number[], content: Int32Array) => {
    const bytes = content.byteLength;
    const object = fake.object();
    const sizes = exports.TVMWasmAllocSpace(8 * shape.length);
    for (const [i, size] of shape.entries()) words().set([size, 0], (sizes >> 2) + 2 * i);
    words().set([sizes, shape.length], (object + 24) >> 2);
    let catcher: Catcher | undefined;
    const call = {
      handle: allocate,
      args: args([
        [70, object],
        [5, 0],
        [6, 15],
        [0, 0],
      ]),
      count: 4,
      result: 0,
    };
    rows.around(library, undefined, call, () => {
      catcher = rows.catcherOf(library, bytes);
      return 0;
    });
    const state = new BufferState(fakeBuffer(catcher ? 4 : bytes), catcher);
    const half = bytes / 2 - ((bytes / 2) % 4);
    catcher?.(0, new Uint8Array(content.buffer, 0, half), state);
    catcher?.(half, new Uint8Array(content.buffer, half), state);
    const handle = fake.tensor(shape);
    fake.buffers.set(handle, state);
    return handle;
  };
  const loadAll = () => {
    const handles = new Map<string, Handle>();
    for (const { name, shape } of PARAMS) {
      const first = name.endsWith("1") ? 3 : 0;
      const kind = name.includes(".a") ? 0 : 1;
      const content = Array.from({ length: shape[0]! * shape[1]! }, (_, i) =>
        wordOf(kind, first + Math.floor(i / shape[1]!), i % shape[1]!),
      );
      handles.set(name, load(shape, Int32Array.from(content)));
    }
    return fake.array(PARAMS.map(({ name }) => handles.get(name)!));
  };
  const ids = (values: readonly number[]) => {
    const handle = fake.tensor([1, values.length]);
    fake.buffers.get(handle)!.written = new Uint8Array(Int32Array.from(values).buffer);
    return handle;
  };
  /** Parameters, by name, that a function is given; and the window's content. */
  const call = (stage: Stage, tensors: readonly Handle[], params: Handle) => {
    const given = [...tensors.map((each) => [INTERFACE.types.tensor, each] as const), [70, 0], [70, params]] as const;
    const at = args(given as unknown as [number, Handle][]);
    let found: Record<string, Handle> = {};
    const status = rows.around(library, stage, { handle: 1, args: at, count: given.length, result: 0 }, () => {
      const array = arrays.get(words()[(at >> 2) + 4 * (given.length - 1) + 2]!)!;
      found = Object.fromEntries(PARAMS.map(({ name }, i) => [name, array[i] as Handle]));
      return 0;
    });
    expect(status).toBe(0);
    expect(words()[(at >> 2) + 4 * (given.length - 1) + 2], "the client's own argument is back").toBe(params);
    return found;
  };
  return { rows, file, fake, device, load, loadAll, ids, call, made, arrays, copied, ended };
}

beforeEach(() => {
  counts.reasons.length = 0;
  counts.tableBytesOnHost = 0;
});

describe("HostRows", () => {
  it("leaves four bytes of the table on the device, and all of what is not of the table", () => {
    const { fake, loadAll, rows, device } = setUp();
    expect(rows.isUsed).toBe(false);
    loadAll();
    const sizes = Array.from(fake.buffers.values(), ({ buffer }) => buffer.size);
    expect(sizes.filter((size) => size === 4)).toHaveLength(4);
    expect(sizes).toContain(4 * 81);
    expect(rows.isUsed).toBe(true);
    expect(device.keepsWrites).toBe(true);
    expect(counts.tableBytesOnHost).toBe(4 * (6 + 3 + 4 + 2));
  });

  it.each([0, 2, 3, 4])("gives a token its row of either part: %i", (id) => {
    const { loadAll, ids, call, copied, made } = setUp();
    const found = call("decode", [ids([id])], loadAll());
    expect(found["table.a0"]).toBe(found["table.a1"]);
    expect(found["table.b0"]).toBe(found["table.b1"]);
    expect(made.get(found["table.a0"]!)).toEqual([1, 2]);
    expect(copied.get(found["table.a0"]!)).toEqual([wordOf(0, id, 0), wordOf(0, id, 1)]);
    expect(copied.get(found["table.b0"]!)).toEqual([wordOf(1, id, 0)]);
  });

  it("gives a prompt rows in its order, the pad token's to a picture, in a window that is no part's size", () => {
    const { loadAll, ids, call, copied, made, fake } = setUp();
    const params = loadAll();
    const prompt = [fake.tensor([1, 3, 4]), ids([4, 2, 900]), ids([0, 1, 0])];
    const found = call("prefill", prompt, params);
    expect(made.get(found["table.a0"]!), "a chunk has 3 tokens, a part 3 rows").toEqual([4, 2]);
    const [first, second] = [4, PAD].map((row) => [wordOf(0, row, 0), wordOf(0, row, 1)]);
    expect(copied.get(found["table.a0"]!)!.slice(0, 4)).toEqual([...first!, ...second!]);
    const again = call("prefill", [prompt[0]!, ids([0]), ids([0])], params);
    expect(again).toEqual(found);
    expect(copied.get(found["table.b0"]!)![0]).toBe(wordOf(1, 0, 0));
  });

  it("hands over what was collected before it reads a chunk's rows, and reads none of them again", () => {
    const { loadAll, ids, call, fake, file, device, copied } = setUp();
    const params = loadAll();
    const done: string[] = [];
    device.stream.flush = () => void done.push("flush");
    const read = file.read.bind(file);
    file.read = (bytes, at) => {
      done.push("read");
      read(bytes, at);
    };
    const prompt = [fake.tensor([1, 3, 4]), ids([2, 1, 2]), ids([0, 0, 0])];
    call("prefill", prompt, params);
    expect(done).toEqual(["flush", "read", "read", "flush", "flush"]);
    done.length = 0;
    const found = call("decode", [ids([1])], params);
    expect(done).not.toContain("read");
    expect(copied.get(found["table.a0"]!)).toEqual([wordOf(0, 1, 0), wordOf(0, 1, 1)]);
  });

  it("brings rows into a window of the module's own, for the client's parameters or those with a window", () => {
    const { loadAll, ids, call, rows, made, arrays, device, fake } = setUp();
    const written: [GPUBuffer, number[]][] = [];
    Object.assign(device, {
      native: {
        writeBuffer: (buffer: GPUBuffer, at: number, bytes: Uint8Array) =>
          written.push([buffer, Array.from(new Int32Array(bytes.buffer, at))]),
      },
    });
    const params = loadAll();
    const plain = call("decode", [ids([1])], params);
    const window = rows.windowOf(params, 3);
    const array = arrays.get(window.params) as Handle[];
    const [, embed, a0, b0, a1] = array;
    expect(made.get(a0!), "parts have 3 and 2 rows").toEqual([4, 2]);
    expect([a1, array[0], embed]).toEqual([a0, b0, plain["embed"]]);
    expect(a0, "the client's calls have another").not.toBe(plain["table.a0"]);
    window.write([4, 900, 2]);
    expect(written).toEqual([
      [fake.buffers.get(a0!)!.buffer, [wordOf(0, 4, 0), wordOf(0, 4, 1), 0, 0, wordOf(0, 2, 0), wordOf(0, 2, 1)]],
      [fake.buffers.get(b0!)!.buffer, [wordOf(1, 4, 0), 0, wordOf(1, 2, 0)]],
    ]);
    const withWindow = [...arrays].find(([, items]) => items.includes(plain["table.a0"]!))![0];
    expect(rows.windowOf(withWindow, 3).params).toBe(window.params);
  });

  it("keeps in memory what the file does not take", () => {
    const { loadAll, ids, call, copied, file } = setUp();
    file.left = 3; // in the middle of a tensor
    const params = loadAll();
    expect(counts.reasons).toEqual([expect.stringContaining("kept in memory")]);
    for (const id of [1, 4]) {
      const found = call("decode", [ids([id])], params);
      expect(copied.get(found["table.a0"]!)).toEqual([wordOf(0, id, 0), wordOf(0, id, 1)]);
      expect(copied.get(found["table.b0"]!)).toEqual([wordOf(1, id, 0)]);
    }
  });

  it("says what is wrong with a library that takes no rows, and with tokens that only the device knows", () => {
    const old = setUp(undefined);
    Object.assign(old.fake.library, { readMetadata: () => JSON.stringify({ params: PARAMS }) });
    expect(() => old.call("decode", [old.ids([1])], old.loadAll())).toThrow("compile the package again");
    const { call, fake, loadAll } = setUp();
    expect(() => call("decode", [fake.tensor([1, 1])], loadAll())).toThrow("does not know the tokens");
  });

  it("ends with the model's tensors: the file is closed, the windows are let go", () => {
    const { call, ids, loadAll, fake, file, rows, ended } = setUp();
    call("decode", [ids([1])], loadAll());
    const [stand] = [...fake.buffers.values()].filter(({ catcher }) => catcher);
    expect(stateOf(stand!.buffer)).toBe(stand);
    for (const dependent of [...stand!.dependents]) dependent.bufferGone();
    expect([file.isClosed, rows.isUsed, counts.tableBytesOnHost]).toEqual([true, false, 0]);
    expect(ended).toEqual([rows]);
  });
});
