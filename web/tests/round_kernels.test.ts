import { beforeEach, describe, expect, it, vi } from "vitest";
import type { Group } from "../src/bind_groups";
import { BufferState } from "../src/buffers";
import type { Device } from "../src/device";
import type { Recorded } from "../src/recorder";
import { FunctionRecord, type Region, Scratch } from "../src/recording";
import { MAX_DRAFTS, MAX_ROWS, RoundKernels, type RoundOwner } from "../src/round_kernels";
import type { Launch, ReadyLaunch } from "../src/stream";
import { fakeBuffer, fakeNative } from "./fake_device";
import { type FakeLibrary, fakeLibrary } from "./fake_library";

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
let device: Device;
let written: [GPUBuffer, Uint8Array][];
let stateBuffers: BufferState[];
let vocabulary: number;
let isClean: boolean;
let destroyed: GPUBuffer[];

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

/** A record of one launch, as those of the sampler are. */
function recorded(name: string, reads: BufferState[], output: BufferState, regions: [BufferState, Region][]): Recorded {
  const roles = { regions: new Map(regions), kept: new Set([output]) };
  const record = FunctionRecord.make(device.native, [launch(name, reads, [output])], roles, new Scratch(device.native));
  return { record, output, any: new Int32Array(4), objects: [] } as unknown as Recorded;
}

function make(): RoundKernels {
  const [logits, probabilities, sampled] = [4 * vocabulary, 4 * vocabulary, 4].map(
    (bytes) => new BufferState(fakeBuffer(bytes)),
  ) as [BufferState, BufferState, BufferState];
  const [temperature, uniform, topP] = [0, 1, 2].map(() => new BufferState(fakeBuffer(4))) as [
    BufferState,
    BufferState,
    BufferState,
  ];
  const softmax = recorded("softmax", [logits, temperature], probabilities, [[temperature, "temperature"]]);
  const sample = recorded("sample", [probabilities, uniform, topP], sampled, [
    [uniform, "uniform"],
    [topP, "top_p"],
    [sampled, "drawn"],
  ]);
  const owner = { library: fake.library, device, state: fake.object(), params: fake.object(), stateBuffers };
  const more = { scratch: new Scratch(device.native), dependent: { bufferGone: () => undefined } };
  return new RoundKernels({ ...owner, ...more } as unknown as RoundOwner, softmax, sample);
}

beforeEach(() => {
  vi.stubGlobal("GPUBufferUsage", { STORAGE: 128, COPY_DST: 8, COPY_SRC: 4 });
  [written, vocabulary, isClean, destroyed] = [[], VOCABULARY, true, []];
  const { native } = fakeNative();
  Object.assign(native, {
    createBuffer: ({ size, usage }: GPUBufferDescriptor) => {
      const buffer = fakeBuffer(size, usage);
      return Object.assign(buffer, { destroy: () => destroyed.push(buffer) });
    },
    createBindGroup: ({ entries }: GPUBindGroupDescriptor) => ({
      bound: [...entries].map(({ resource }) => resource as Bound),
    }),
    writeBuffer: (buffer: GPUBuffer, _: number, bytes: ArrayBufferView) =>
      written.push([buffer, new Uint8Array(bytes.buffer.slice(0), bytes.byteOffset, bytes.byteLength)]),
  });
  device = { native, device: { limits: { minStorageBufferOffsetAlignment: STRIDE } } } as unknown as Device;
  fake = fakeLibrary(device);
  const { library, buffers, tensor } = fake;
  library.machine = fake.object();
  library.drafter = fake.object();
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
  it("run the model on so many tokens, and draw from each row", () => {
    const kernels = make();
    const launches = kernels.run(3);
    const names = launches.map(({ pipeline }) => pipeline.label);
    expect(names).toEqual(["embed", "verify", "softmax", "sample", "softmax", "sample", "softmax", "sample"]);
    const [embed, verify, ...draws] = launches.map(boundBy);
    expect(embed![0]).toEqual({ buffer: kernels.ids, offset: 0, size: 12 });
    const logits = verify![4]!;
    expect(logits.size).toBe(3 * 4 * VOCABULARY);
    expect(verify![5]).toEqual({ buffer: kernels.states, offset: 0, size: 3 * 4 * WIDTH });
    expect(verify![6]).toEqual({ buffer: stateBuffers[2]!.buffer }); // the model's own keys and values
    for (const row of [0, 1, 2]) {
      const [softmax, sample] = [draws[2 * row]!, draws[2 * row + 1]!];
      expect(softmax[0]).toEqual({ buffer: logits.buffer, offset: row * 4 * VOCABULARY, size: 4 * VOCABULARY });
      expect(sample[3]).toEqual({ buffer: kernels.drawn, offset: row * STRIDE, size: 4 });
      expect(sample[1]!.offset).toBe((4 + row) * STRIDE);
    }
  });

  it("guess a token and a state from those of the guess before", () => {
    const kernels = make();
    for (let j = 0; j < MAX_DRAFTS; j++) {
      const [embed, draft] = kernels.guess(j).map(boundBy);
      expect(embed![0]!.buffer).toBe(kernels.tokens[j]);
      expect(draft![1]!.buffer).toBe(kernels.hidden[j % 2]);
      expect(draft![4]!.buffer).toBe(stateBuffers[2]!.buffer);
      expect(draft![5]!.buffer).toBe(kernels.tokens[j + 1]);
      expect(draft![6]!.buffer).toBe(kernels.hidden[(j + 1) % 2]);
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
    kernels.write({ position: 20, token: 9, temperature: 5, topP: 6, uniforms: [70, 71, 72] });
    const [inputs, token, ids, rotary] = written.map(([, bytes]) => bytes) as [
      Uint8Array,
      Uint8Array,
      Uint8Array,
      Uint8Array,
    ];
    const cells = new Int32Array(inputs.buffer);
    const cell = (index: number, count = 1) => [...cells.subarray((index * STRIDE) / 4, (index * STRIDE) / 4 + count)];
    expect([cell(0, 4), cell(1, 4)]).toEqual([
      [20, 1, 20, 0], // every guess of a round is made at its position
      [20, 3, 23, 0],
    ]);
    expect([2, 3, 4, 5, 6].map((index) => cell(index)[0])).toEqual([5, 6, 70, 71, 72]);
    expect([token, ids].map((bytes) => new Int32Array(bytes.buffer)[0])).toEqual([9, 9]);
    expect([0, 8, 16].map((at) => rotary[at])).toEqual([20, 21, 22]);
    expect(rotary.length).toBe(3 * ROTARY_BYTES);
    expect(written[1]![0]).toBe(kernels.tokens[0]);
    expect(written[2]![0]).toBe(kernels.ids);
  });
});

describe("a library that cannot be recorded", () => {
  it("is one whose rows of logits cannot be bound", () => {
    vocabulary = 100;
    expect(make).toThrow("rows of logits begin where no buffer can be bound");
    expect(destroyed.length).toBeGreaterThanOrEqual(MAX_ROWS); // what was made for it goes again
  });

  it("is one that does more than launch kernels", () => {
    isClean = false;
    expect(make).toThrow("do more than launch kernels");
    expect(device.recording).toBeUndefined();
  });

  it("is one without the functions", () => {
    fake.define("ffi.ModuleGetFunction", ([, name]) => (name === "verify_tokens" ? 0 : fake.object()));
    expect(make).toThrow("the library has no function `verify_tokens`");
  });
});
