import { beforeEach, describe, expect, it, vi } from "vitest";
import type { Group } from "../../src/gpu/bind_groups";
import { BufferState } from "../../src/gpu/buffers";
import type { Device } from "../../src/gpu/device";
import { Drafter } from "../../src/speculative/drafter_state";
import {
  MAX_DRAFTS,
  MAX_ROWS,
  RECORD_BYTES,
  ROUND_KERNELS,
  type RoundPipelines,
} from "../../src/speculative/next_round";
import { RoundKernels, type RoundOwner } from "../../src/speculative/round_kernels";
import type { Launch, ReadyLaunch } from "../../src/gpu/stream";
import { fakeBuffer, fakeNative } from "../fake_device";
import { type FakeLibrary, fakeLibrary } from "../fake_library";

const STRIDE = 256;
const VOCABULARY = 128; // a row of logits is two strides
const WIDTH = 6;
const ROTARY_BYTES = 8;

/** What a fake bind group binds: the buffers of its entries, with their offset and size. */
interface Bound {
  readonly buffer: GPUBuffer;
  readonly offset?: number;
  readonly size?: number;
}

let fake: FakeLibrary;
let drafter: Drafter;
let device: Device;
let written: { buffer: GPUBuffer; offset: number; bytes: Uint8Array }[];
let stateBuffers: BufferState[];
let vocabulary: number;
let isClean: boolean;
let destroyed: GPUBuffer[];
let created: GPUBuffer[];

const boundBy = ({ group }: ReadyLaunch): Bound[] => (group as unknown as { bound: Bound[] }).bound;

function launch(label: string, reads: readonly BufferState[], writes: readonly BufferState[]): Launch {
  const storage = [...reads, ...writes];
  const group = {
    layout: {},
    uniform: { buffer: fakeBuffer() },
    storage,
    writes: storage.map((_, i) => i >= reads.length),
  } as unknown as Group;
  return { kind: "launch", pipeline: { label } as GPUComputePipeline, group, x: 1, y: 1, z: 1 };
}

/** A function that launches one kernel: reads what it is given, writes what it returns. */
function kernel(name: string, reads: readonly BufferState[], writes: readonly BufferState[]): void {
  device.recording!.launches.push(launch(name, reads, writes));
  if (!isClean) device.recording!.isClean = false;
}

function make(): RoundKernels {
  const owner = { library: fake.library, drafter, device, state: fake.object(), params: fake.object(), stateBuffers };
  return new RoundKernels(owner as unknown as RoundOwner, { bufferGone: () => undefined });
}

beforeEach(() => {
  vi.stubGlobal("GPUBufferUsage", { STORAGE: 128, UNIFORM: 64, COPY_DST: 8, COPY_SRC: 4 });
  [written, vocabulary, isClean, destroyed, created] = [[], VOCABULARY, true, [], []];
  const { native } = fakeNative();
  Object.assign(native, {
    createBuffer: ({ size, usage }: GPUBufferDescriptor) => {
      const buffer = fakeBuffer(size, usage);
      created.push(buffer);
      return Object.assign(buffer, { destroy: () => destroyed.push(buffer) });
    },
    createBindGroup: ({ entries }: GPUBindGroupDescriptor) => ({
      bound: [...entries].map(({ resource }) => resource as Bound),
    }),
    writeBuffer: (buffer: GPUBuffer, offset: number, view: ArrayBufferView) =>
      written.push({ buffer, offset, bytes: new Uint8Array(view.buffer.slice(0), view.byteOffset, view.byteLength) }),
  });
  device = { native, device: { limits: { minStorageBufferOffsetAlignment: STRIDE } } } as unknown as Device;
  fake = fakeLibrary(device);
  const { library, buffers, tensor } = fake;
  library.machine = fake.object();
  drafter = Drafter.of(library);
  drafter.weights = fake.object();
  drafter.roundPipelines = Object.fromEntries(
    ["gather_drafts", "next_round"].map((label) => [label, { label, getBindGroupLayout: () => ({}) }]),
  ) as unknown as RoundPipelines;
  stateBuffers = [16, 64, 1024].map((bytes) => new BufferState(fakeBuffer(bytes)));
  const [positions, rotary, keys] = stateBuffers as [BufferState, BufferState, BufferState];
  const pair = (first: number, second: number) => fake.array([first, second]);
  fake.define("embed", ([ids]) => {
    const made = tensor([buffers.get(ids as number)!.buffer.size / 4, WIDTH]);
    kernel("embed", [buffers.get(ids as number)!], [buffers.get(made)!]);
    return made;
  });
  fake.define("verify_tokens", ([embedded, ids]) => {
    const rows = buffers.get(ids as number)!.buffer.size / 4;
    const [logits, states] = [tensor([1, rows, vocabulary]), tensor([1, rows, WIDTH])];
    const reads = [embedded as number, ids as number].map((one) => buffers.get(one)!);
    kernel("verify", [...reads, positions, rotary], [logits, states].map((one) => buffers.get(one)!).concat(keys));
    return pair(logits, states);
  });
  fake.define("draw_rows", (numbers) => {
    const reads = numbers.map((one) => buffers.get(one as number)!);
    const tokens = tensor([reads[0]!.buffer.size / 4 / vocabulary]);
    kernel("draw", reads, [buffers.get(tokens)!]);
    return tokens;
  });
  fake.define("draft_token", ([embedded, hidden, at]) => {
    const [token, state] = [tensor([1]), tensor([1, WIDTH])];
    const reads = [embedded, hidden, at].map((one) => buffers.get(one as number)!);
    kernel(
      "draft",
      [...reads, rotary, keys],
      [token, state].map((one) => buffers.get(one)!),
    );
    return pair(token, state);
  });
  let filled = 0;
  Object.assign(library.exports, {
    gemma4_driver_step_bytes: () => ROTARY_BYTES,
    gemma4_driver_step: (_: number, position: number, __: number, values: number) => {
      filled += 1;
      new Uint8Array(library.exports.memory.buffer, values, ROTARY_BYTES).fill(position);
      return filled;
    },
  });
});

describe("the launches of a round", () => {
  it("run the model on so many tokens, draw from each row, and prepare the next round", () => {
    const kernels = make();
    const launches = kernels.run(3);
    const names = launches.map(({ pipeline }) => pipeline.label);
    expect(names).toEqual(["gather_drafts", "embed", "verify", "draw", "next_round"]);
    expect(launches.map(({ x }) => x)).toEqual([3, 1, 1, 1, 1]); // a block for each row
    const [gather, embed, verify, draw, next] = launches.map(boundBy) as [Bound[], Bound[], Bound[], Bound[], Bound[]];
    const [inputs, ids] = [gather[1]!.buffer, gather[2]!.buffer];
    expect(embed[0]).toEqual({ buffer: ids, offset: 0, size: 12 });
    expect(verify[2]).toEqual({ buffer: inputs, offset: STRIDE, size: 16 });
    const logits = verify[4]!;
    expect(logits.size).toBe(3 * 4 * VOCABULARY);
    const states = verify[5]!;
    expect(states).toMatchObject({ offset: 0, size: 3 * 4 * WIDTH });
    expect(verify[6]).toEqual({ buffer: stateBuffers[2]!.buffer }); // the model's own keys and values
    const drawn = next[3]!.buffer;
    expect(draw.slice(0, 5)).toEqual([
      logits,
      { buffer: inputs, offset: 2 * STRIDE, size: 4 },
      { buffer: inputs, offset: 4 * STRIDE, size: 12 },
      { buffer: inputs, offset: 3 * STRIDE, size: 4 },
      { buffer: drawn, offset: 0, size: 12 },
    ]);
    const rotary = verify[3]!.buffer;
    expect(next.slice(1).map(({ buffer }) => buffer)).toEqual([
      inputs,
      ids,
      drawn,
      states.buffer,
      boundBy(kernels.draft(1)[1]!)[1]!.buffer, // the state that the first draft reads
      kernels.table.buffer,
      rotary,
    ]);
  });

  it("draft a token and a state from those of the draft before", () => {
    const kernels = make();
    const [gather] = kernels.run(1).map(boundBy);
    const [, , ids, drafted] = gather!.map(({ buffer }) => buffer);
    const cell = (j: number) => ({ buffer: drafted, offset: j * STRIDE, size: 4 });
    const launches = kernels.draft(MAX_DRAFTS).map(boundBy);
    expect(launches).toHaveLength(2 * MAX_DRAFTS);
    for (let j = 0; j < MAX_DRAFTS; j++) {
      const [embed, draft] = launches.slice(2 * j);
      expect(embed![0]).toEqual(j === 0 ? { buffer: ids, offset: 0, size: 4 } : cell(j - 1));
      expect(draft![5]).toEqual(cell(j));
      expect(draft![4]!.buffer).toBe(stateBuffers[2]!.buffer);
      if (j > 0) expect(draft![1]!.buffer).toBe(launches[2 * j - 1]![6]!.buffer);
    }
    expect(kernels.draft(0)).toEqual([]);
    expect(kernels.draft(3)).toHaveLength(6);
  });

  it("have results where the library's pool gave them a buffer that held something on the way", () => {
    const [positions, rotary] = stateBuffers as [BufferState, BufferState];
    fake.define("draft_token", ([embedded, hidden]) => {
      const [token, state, between] = [fake.tensor([1]), fake.tensor([1, WIDTH]), fake.tensor([WIDTH])];
      const of = (one: unknown) => fake.buffers.get(one as number)!;
      kernel("project", [of(embedded), of(hidden)], [of(token)]);
      kernel("norm", [of(token)], [of(between)]);
      kernel("best", [of(between), positions, rotary], [of(token)]);
      kernel("last", [of(between), of(token)], [of(state)]);
      return fake.array([token, state]);
    });
    const launches = make().draft(2);
    expect(launches.map(({ pipeline }) => pipeline.label)).toEqual(
      Array(2).fill(["embed", "project", "norm", "best", "last"]).flat(),
    );
    for (const first of [0, 5]) {
      const [project, norm, best, last] = launches.slice(first + 1, first + 5).map(boundBy);
      const cell = { buffer: best![3]!.buffer, offset: first === 0 ? 0 : STRIDE, size: 4 };
      expect(best![3]).toEqual(cell);
      expect(last![1]).toEqual(cell); // it is read as the result, too
      expect(project![2]!.buffer).not.toBe(cell.buffer);
      expect(norm![0]).toEqual(project![2]);
      expect(norm![0]).not.toHaveProperty("offset"); // the whole of a private buffer
    }
  });

  it("are recorded once, without running anything, and nothing of it is kept", () => {
    const kernels = make();
    const before = fake.calls.length;
    kernels.run(1);
    expect(fake.calls.length).toBe(before); // made with the kernels
    kernels.run(MAX_ROWS);
    const recordings = fake.calls.length;
    kernels.run(MAX_ROWS);
    expect(fake.calls.length).toBe(recordings);
    expect(device.recording).toBeUndefined();
    expect(fake.released).toEqual(expect.arrayContaining([...fake.buffers.keys()]));
  });

  it("get positions, numbers and angles where they look for them", () => {
    const kernels = make();
    written.length = 0;
    kernels.begin({ position: 20, token: 9, temperature: 5, topP: 6, randomState: 77 });
    const [table, inputs, ids, rotary] = written;
    expect(written).toHaveLength(4);
    expect(table!.buffer).toBe(kernels.table.buffer);
    const cells = new Int32Array(inputs!.bytes.buffer);
    const cell = (index: number, count = 1) => [...cells.subarray((index * STRIDE) / 4, (index * STRIDE) / 4 + count)];
    expect([cell(0, 4), cell(1, 4)]).toEqual([
      [20, 1, 20, 0], // every draft of a round is made at its position
      [20, 1, 21, 0],
    ]);
    expect([2, 3, 4].map((index) => cell(index)[0])).toEqual([5, 6, kernels.table.uniformAt(20)]);
    expect([...new Int32Array(ids!.bytes.buffer)]).toEqual([9]);
    expect([...rotary!.bytes]).toEqual(Array(ROTARY_BYTES).fill(20));
  });

  it("have their record copied from behind what was drawn", () => {
    const kernels = make();
    const copied: unknown[][] = [];
    const target = fakeBuffer(RECORD_BYTES);
    kernels.copyRecord(
      { copyBufferToBuffer: (...args: unknown[]) => copied.push(args) } as unknown as GPUCommandEncoder,
      target,
    );
    const drawn = boundBy(kernels.run(1).at(-1)!)[3]!.buffer;
    expect(copied).toEqual([[drawn, MAX_ROWS * 4, target, 0, RECORD_BYTES]]);
    expect(drawn.size).toBe(MAX_ROWS * 4 + RECORD_BYTES);
  });

  it("leave no buffers", () => {
    make().destroy();
    expect(new Set(destroyed)).toEqual(new Set(created));
  });

  it("bind no more storage buffers than every device allows", () => {
    const bindings = ROUND_KERNELS.match(/@binding\(\d\) var<storage/g)!;
    expect(bindings.length).toBeLessThanOrEqual(8);
  });
});

describe("a library that cannot be recorded", () => {
  it("leaves no buffers, and nothing that depends on its own", () => {
    const scratch = fake.tensor([4]);
    const weights = new BufferState(fakeBuffer());
    fake.define("draw_rows", () => {
      throw new Error("no room");
    });
    fake.define("embed", ([ids]) => {
      kernel("gather", [fake.buffers.get(ids as number)!, weights], [fake.buffers.get(scratch)!]);
      const made = fake.tensor([1, WIDTH]);
      kernel("embed", [fake.buffers.get(scratch)!], [fake.buffers.get(made)!]);
      return made;
    });
    expect(make).toThrow("the library's function `draw_rows` failed");
    expect(created.length).toBeGreaterThan(0);
    expect(new Set(destroyed)).toEqual(new Set(created));
    expect(weights.dependents.size).toBe(0);
  });

  it("is one that does more than launch kernels", () => {
    isClean = false;
    expect(make).toThrow("do more than launch kernels");
    expect(device.recording).toBeUndefined();
  });

  it("is one whose device has no kernels between rounds", () => {
    drafter.roundPipelines = undefined;
    expect(make).toThrow("the kernels between rounds are not there");
  });

  it.each(["verify_tokens", "draw_rows"])("is one without %s", (missing) => {
    fake.define("ffi.ModuleGetFunction", ([, name]) => (name === missing ? 0 : fake.object()));
    expect(make).toThrow(`the library has no function \`${missing}\``);
  });
});
