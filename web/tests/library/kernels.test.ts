import { beforeEach, describe, expect, it } from "vitest";
import { BindGroups, noteLayout } from "../../src/gpu/bind_groups";
import { BufferState } from "../../src/gpu/buffers";
import { formOf, Kernels } from "../../src/library/kernels";
import type { Launch } from "../../src/gpu/stream";
import { counts } from "../../src/stats";
import { fakeBuffer, fakeNative } from "../fake_device";

const KERNEL = {
  arg_types: ["handle", "int32", "handle", "float32"],
  launch_param_tags: ["blockIdx.x", "threadIdx.x", "blockIdx.y", "paramWriteAccess:[0,1]"],
};
const SELF = 9;
const INT = 1,
  FLOAT = 3,
  POINTER = 4,
  STRING = 8;
type Argument = readonly [type: number, value: number];

let states: Map<number, BufferState>;
let groups: BindGroups;
let kernels: Kernels;
let names: WeakMap<GPUComputePipeline, string>;
const pipeline = {} as GPUComputePipeline;
const layout = {} as GPUBindGroupLayout;

beforeEach(() => {
  counts.reasons.length = 0;
  Object.assign(globalThis, { GPUBufferUsage: { MAP_READ: 1, COPY_SRC: 4, COPY_DST: 8, UNIFORM: 64, STORAGE: 128 } });
  states = new Map([3, 4, 5].map((handle) => [handle, made(handle)]));
  const { native } = fakeNative();
  groups = new BindGroups(
    () => native,
    () => undefined,
  );
  noteLayout(layout, {
    entries: ["read-only-storage", "storage", "uniform"].map((type, binding) => ({
      binding,
      visibility: 4,
      buffer: { type: type as GPUBufferBindingType },
    })),
  });
  names = new WeakMap([[pipeline, "kernel"]]);
  kernels = new Kernels(
    () => ({ groups, kernelNames: names }),
    (handle) => states.get(handle)?.buffer,
  );
  kernels.describe(JSON.stringify({ kernel: KERNEL }));
});

function made(handle: number): BufferState {
  const state = new BufferState(fakeBuffer());
  state.handle = handle;
  return state;
}

function memory(values: readonly Argument[]) {
  const words = new Int32Array(4 * values.length);
  const doubles = new Float64Array(words.buffer);
  values.forEach(([type, value], i) => {
    words[4 * i] = type;
    if (type === FLOAT) doubles[2 * i + 1] = value;
    else words[4 * i + 2] = value;
  });
  return { words, doubles };
}

const call = (a: number, b: number, rows: number, scale: number, x = 7, y = 2): Argument[] => [
  [POINTER, a],
  [INT, rows],
  [POINTER, b],
  [FLOAT, scale],
  [INT, x],
  [INT, 64],
  [INT, y],
];
const launch = (values: Argument[]) => kernels.launch(SELF, memory(values), 0, values.length);

/** What the runtime makes of a call. */
function issued(a: number, b: number, rows: number, scale: number, x = 7, y = 2): Launch {
  const content = new Int32Array([rows, new Int32Array(Float32Array.of(scale).buffer)[0]!, x]);
  const group = groups.kernel(layout, [states.get(a)!, states.get(b)!], new Uint8Array(content.buffer))!;
  return { kind: "launch", pipeline, group, x, y, z: 1 };
}

const learn = (values: Argument[], seen: Launch) => kernels.learn(SELF, memory(values), 0, values.length, seen);

describe("launches from a library's arguments", () => {
  it("reads a kernel's description", () => {
    expect(formOf(KERNEL)).toEqual({ buffers: [0, 2], scalars: [1, 3], grid: [4, 6, -1], count: 7 });
    expect(formOf({ ...KERNEL, arg_types: ["handle", "int64"] })).toBeUndefined();
    expect(formOf({ ...KERNEL, launch_param_tags: ["clusterIdx.x"] })).toBeUndefined();
  });

  it("makes those of a kernel that it has seen, from other arguments as well", () => {
    expect(launch(call(3, 4, 10, 0.5))).toBeUndefined();
    learn(call(3, 4, 10, 0.5), issued(3, 4, 10, 0.5));
    expect(launch(call(3, 4, 10, 0.5))).toMatchObject(issued(3, 4, 10, 0.5));
    expect(launch(call(5, 4, -1, 1.25, 100, 3))).toMatchObject(issued(5, 4, -1, 1.25, 100, 3));
    expect(launch(call(5, 4, -1, 1.25, 100, 3))).toBe(launch(call(5, 4, -1, 1.25, 100, 3)));
    expect(counts.reasons).toEqual([]);
  });

  it("leaves a kernel to the runtime that launches it otherwise, and says so once", () => {
    learn(call(3, 4, 10, 0.5), { ...issued(3, 4, 10, 0.5), y: 1 });
    learn(call(3, 4, 10, 0.5), issued(3, 4, 10, 0.5));
    expect(kernels.isKnown(SELF)).toBe(false);
    expect(counts.reasons).toHaveLength(1);
  });

  it("does not take a buffer for another one with the same number", () => {
    learn(call(3, 4, 10, 0.5), issued(3, 4, 10, 0.5));
    const before = launch(call(3, 4, 10, 0.5))!;
    states.get(3)!.handle = 0;
    expect(launch(call(3, 4, 10, 0.5))).toBeUndefined();
    states.set(3, made(3));
    const after = launch(call(3, 4, 10, 0.5))!;
    expect(after.group).not.toBe(before.group);
    expect(after.group.storage[0]).toBe(states.get(3));
  });

  it("forgets a kernel's launches with its number", () => {
    learn(call(3, 4, 10, 0.5), issued(3, 4, 10, 0.5));
    kernels.forget(SELF);
    const other = {} as GPUComputePipeline;
    names.set(other, "kernel");
    learn(call(3, 4, 11, 0.5), { ...issued(3, 4, 11, 0.5), pipeline: other });
    expect(launch(call(3, 4, 10, 0.5))?.pipeline).toBe(other);
  });

  it("leaves to the runtime what only that can do", () => {
    learn(call(3, 4, 10, 0.5), issued(3, 4, 10, 0.5));
    expect(launch(call(3, 4, 10, 0.5, 65536))).toBeUndefined();
    expect(launch(call(3, 8, 10, 0.5))).toBeUndefined();
    expect(launch([...call(3, 4, 10, 0.5).slice(0, 6), [STRING, 2]])).toBeUndefined();
    expect(launch([[INT, 3], ...call(3, 4, 10, 0.5).slice(1)])).toBeUndefined();
    expect(launch(call(3, 4, 10, 0.5).slice(1))).toBeUndefined();
    kernels.forget(SELF);
    expect(launch(call(3, 4, 10, 0.5))).toBeUndefined();
  });
});
