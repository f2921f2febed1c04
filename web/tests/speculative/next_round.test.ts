import { describe, expect, it } from "vitest";
import type { Native } from "../../src/gpu/native";
import {
  bindRoundKernel,
  makeRoundPipelines,
  MAX_ROWS,
  readRecord,
  RECORD_BYTES,
  ROUND_KERNELS,
  type RoundPipelines,
  sizesInMemory,
  TABLE_ROWS,
} from "../../src/speculative/next_round";
import { fakeBuffer } from "../fake_device";

// What the kernels compute is tested on a device: tests/web/test_next_round.py.

describe("a record", () => {
  it("says where a round began, what was drafted and what was drawn", () => {
    const words = new Int32Array(RECORD_BYTES / 4);
    words.set([40, 3, 1, 5, 6, 7, 99]); // behind the tokens of its rows is what an earlier round left
    words.set([6, 8, 9, 99], 3 + MAX_ROWS);
    expect(readRecord(words)).toEqual({ position: 40, rows: 3, accepted: 1, drafts: [6, 7], drawn: [6, 8, 9] });
  });
});

describe("the kernels between rounds", () => {
  const native = (refusal?: string) => {
    const calls: string[] = [];
    const made = {
      pushErrorScope: () => calls.push("push"),
      popErrorScope: async () => void calls.push("pop"),
      createShaderModule: ({ code }: GPUShaderModuleDescriptor) => {
        calls.push("module");
        expect(code).toBe(ROUND_KERNELS);
        return {};
      },
      createComputePipelineAsync: async ({ compute }: GPUComputePipelineDescriptor) => {
        if (refusal) throw new Error(refusal);
        return { label: compute.entryPoint, getBindGroupLayout: () => `layout of ${compute.entryPoint}` };
      },
      createBindGroup: (descriptor: unknown) => descriptor,
    } as unknown as Native;
    return { calls, made };
  };

  it("are made without an error that reaches the client", async () => {
    const { calls, made } = native();
    const { gather_drafts, next_round } = await makeRoundPipelines(made);
    expect(calls).toEqual(["push", "module", "pop"]);
    expect([gather_drafts.label, next_round.label]).toEqual(["gather_drafts", "next_round"]);
    await expect(makeRoundPipelines(native("not here").made)).rejects.toThrow("not here");
  });

  it("leave no rejection that nobody hears of, on a device that is lost", async () => {
    const { made } = native("lost");
    made.popErrorScope = () => Promise.reject(new Error("lost as well"));
    await expect(makeRoundPipelines(made)).rejects.toThrow("lost");
    await new Promise((done) => setTimeout(done, 0)); // Vitest fails where one is left
  });

  it("bind the buffers that they name", async () => {
    const { made } = native();
    const pipelines: RoundPipelines = await makeRoundPipelines(made);
    const names = ["inputs", "ids", "drawn", "states", "hidden", "table", "rotary", "drafts"] as const;
    const buffers = Object.fromEntries(names.map((name) => [name, fakeBuffer()])) as Record<
      (typeof names)[number],
      GPUBuffer
    >;
    const sizes = fakeBuffer();
    for (const name of ["gather_drafts", "next_round"] as const) {
      const { layout, entries } = bindRoundKernel(made, pipelines, name, sizes, buffers) as unknown as {
        layout: string;
        entries: { binding: number; resource: GPUBufferBinding }[];
      };
      expect(layout).toBe(`layout of ${name}`);
      const body = new RegExp(`fn ${name}\\([^]*?\\n}`).exec(ROUND_KERNELS)![0];
      const used = names.filter((bound) => new RegExp(`\\b${bound}\\[`).test(body));
      expect(entries.map(({ resource }) => resource.buffer)).toEqual([sizes, ...used.map((bound) => buffers[bound])]);
      for (const [i, bound] of used.entries())
        expect(ROUND_KERNELS).toMatch(new RegExp(`@binding\\(${entries[i + 1]!.binding}\\) var<storage.*> ${bound}:`));
    }
  });

  it("have sizes in words, and a table that a position's low bits lead into", () => {
    expect([...sizesInMemory({ stride: 64, state: 1536, rotary: 384 })]).toEqual([64, 1536, 384, 0]);
    expect(Math.log2(TABLE_ROWS) % 1).toBe(0);
  });
});
