import { describe, expect, it } from "vitest";
import { BufferState } from "../../src/gpu/buffers";
import { PassClock } from "../../src/gpu/pass_clock";
import type { Launch } from "../../src/gpu/stream";
import { operatorsOf, timeKernels } from "../../src/profile/kernel_times";
import { fakeBuffer } from "../fake_device";

const COST = { matmul_kernel: 40, norm_kernel: 5, norm_kernel_1: 3 } as const;
const SUBMISSION = 700;
type Name = keyof typeof COST;

/** A device whose work moves a clock: so many microseconds for a workgroup, and for a submission. Its own moves in ticks. */
function timedDevice(isOfDevice: boolean, tick = 1) {
  const spent = { microseconds: 0, most: 0 };
  const stamps = new BigUint64Array(2);
  const clock = new PassClock(
    {
      createBuffer: ({ size, usage }) =>
        Object.assign(fakeBuffer(size, usage), {
          mapAsync: async () => undefined,
          getMappedRange: () => stamps.buffer,
          unmap: () => undefined,
        }),
      createQuerySet: () => ({ destroy: () => undefined }) as GPUQuerySet,
      createCommandEncoder: () => {
        let current: Name = "norm_kernel";
        const run = { cost: 0, workgroups: 0 };
        return {
          beginComputePass: () => ({
            setPipeline: (name: Name) => {
              current = name;
            },
            setBindGroup: () => undefined,
            dispatchWorkgroups: (x: number) => {
              run.cost += COST[current] * x;
              run.workgroups += x;
            },
            end: () => undefined,
          }),
          resolveQuerySet: () => undefined,
          copyBufferToBuffer: () => undefined,
          finish: () => run,
        } as unknown as GPUCommandEncoder;
      },
      submit: (lists) => {
        const [{ cost, workgroups }] = lists as unknown as [{ cost: number; workgroups: number }];
        stamps.set([0n, BigInt(Math.round(1000 * tick * Math.floor(cost / tick)))]);
        spent.microseconds += cost + SUBMISSION;
        spent.most = Math.max(spent.most, workgroups);
      },
      onSubmittedWorkDone: async () => undefined,
    },
    isOfDevice,
    () => spent.microseconds / 1000,
  );
  return { clock, spent };
}

function launch(name: Name, reads: readonly BufferState[], writes: readonly BufferState[], x = 1): Launch {
  const storage = [...reads, ...writes];
  const group = { group: {}, storage, writes: storage.map((state) => writes.includes(state)) };
  return { kind: "launch", pipeline: name, group, x, y: 1, z: 1 } as unknown as Launch;
}

const nameOf = (pipeline: GPUComputePipeline) => pipeline as unknown as string;
const OPERATORS = operatorsOf(JSON.stringify({ kernels: { matmul: '{"kind": "linear"}', norm: '{"kind": "norm"}' } }));

describe.each([true, false])("kernels of a step, timed by the device: %s", (isOfDevice) => {
  it("come by function, longest first, with what they take in the step", async () => {
    const [first, second, rows] = [1024, 2048, 4096].map((size) => new BufferState(fakeBuffer(size)));
    const step = [
      launch("norm_kernel", [], [rows!]),
      launch("norm_kernel_1", [], [rows!]),
      launch("matmul_kernel", [first!, rows!], [rows!]),
      launch("matmul_kernel", [second!, rows!], [rows!], 2),
    ];
    const found = await timeKernels(timedDevice(isOfDevice).clock, step, nameOf, OPERATORS);
    expect(found.map(({ microseconds, share: _, ...rest }) => [rest, Math.round(microseconds)])).toEqual([
      [{ kernel: "matmul", operator: "linear", launches: 2, bytes: 1024 + 2048 }, 120],
      [{ kernel: "norm", operator: "norm", launches: 2 }, 8],
    ]);
    expect(found.reduce((sum, { share }) => sum + share, 0)).toBeCloseTo(1);
  });

  it("are issued as often as the clock needs, and large ones in parts", async () => {
    const small = timedDevice(isOfDevice);
    await timeKernels(small.clock, [launch("norm_kernel", [], [])], nameOf, OPERATORS);
    expect(small.spent.most * COST.norm_kernel).toBeGreaterThan(4000);
    expect(small.spent.most).toBeLessThanOrEqual(2048);
    const large = timedDevice(isOfDevice);
    const step = Array.from({ length: 3 }, () => launch("matmul_kernel", [], [], 16_384));
    const [found] = await timeKernels(large.clock, step, nameOf, OPERATORS);
    expect(large.spent.most).toBe(16_384);
    expect(found!.microseconds).toBe(3 * 16_384 * COST.matmul_kernel);
  });
});

it.each([1, 12])(
  "a small kernel that is launched %d times is known to a few percent by a clock of 0.1 ms",
  async (count) => {
    const step = Array.from({ length: count }, () => launch("norm_kernel_1", [], []));
    const [found] = await timeKernels(timedDevice(true, 100).clock, step, nameOf, OPERATORS);
    expect(found!.microseconds).toBeGreaterThan(0.95 * count * COST.norm_kernel_1);
    expect(found!.microseconds).toBeLessThan(1.05 * count * COST.norm_kernel_1);
  },
);

describe("operators of a library", () => {
  it.each([undefined, "{", "{}", '{"kernels": {"a": "{"}}'])("are unknown in %s", (metadata) => {
    expect(operatorsOf(metadata)).toEqual(new Map());
  });

  it.each([
    ["linear", 64],
    ["experts_linear", undefined],
    ["embedding", undefined],
  ])("%s: its bytes are known to be %s", async (kind, bytes) => {
    const operators = operatorsOf(JSON.stringify({ kernels: { matmul: JSON.stringify({ kind }) } }));
    const step = [launch("matmul_kernel", [new BufferState(fakeBuffer(64))], [])];
    const [found] = await timeKernels(timedDevice(true).clock, step, nameOf, operators);
    expect(found!.bytes).toBe(bytes);
  });
});
