import { beforeEach, describe, expect, it, vi } from "vitest";
import { bits } from "../../src/replay/multi_step";
import type { Library } from "../../src/library/library";
import type { Native } from "../../src/gpu/native";
import { TABLE_ROWS } from "../../src/speculative/next_round";
import { nextState, uniformOf } from "../../src/library/random";
import { RoundTable } from "../../src/speculative/round_table";

const ROTARY_BYTES = 8;
const ROW_WORDS = 1 + ROTARY_BYTES / 4;
const CAPACITY = 1000;
const SEED = 77;

let memory: Int32Array;
let writes: number;
let table: RoundTable;

/** The number of the `count`th draw after the seed. */
function uniform(count: number): number {
  let state = SEED;
  for (let i = 0; i < count; i++) state = nextState(state);
  return bits(uniformOf(state));
}

const row = (position: number) => {
  const at = (position % TABLE_ROWS) * ROW_WORDS;
  return [...memory.subarray(at, at + ROW_WORDS)];
};
const expected = (position: number, begin: number) => [uniform(position - begin + 1), position, -position];

beforeEach(() => {
  vi.stubGlobal("GPUBufferUsage", { STORAGE: 128, COPY_DST: 8 });
  writes = 0;
  const wasm = new WebAssembly.Memory({ initial: 1 });
  const native = {
    createBuffer: ({ size }: GPUBufferDescriptor) => {
      memory = new Int32Array(size / 4);
      return { size, destroy: () => undefined };
    },
    writeBuffer: (_: GPUBuffer, offset: number, bytes: Uint8Array) => {
      writes += 1;
      memory.set(new Int32Array(bytes.slice().buffer), offset / 4);
    },
  } as unknown as Native;
  const exports = {
    memory: wasm,
    gemma4_driver_step: (_: number, position: number, __: number, rotary: number) => {
      if (position >= CAPACITY) return -1;
      new Int32Array(wasm.buffer).set([position, -position], rotary / 4);
      return 0;
    },
  };
  const library = { exports, scratch: 64 } as unknown as Library;
  table = new RoundTable(library, native, 1, ROTARY_BYTES);
});

describe("a table of numbers and angles", () => {
  it("has a row for each position, around and around", () => {
    const begin = 100;
    table.begin(begin, SEED);
    for (let first = begin; first < begin + 3 * TABLE_ROWS; first += 3) {
      table.fill(first, first + 60);
      for (let position = first; position < first + 60; position++) {
        expect(row(position)).toEqual(expected(position, begin));
        expect(table.uniformAt(position)).toBe(uniform(position - begin + 1));
      }
    }
  });

  it("is not written for every round", () => {
    table.begin(0, SEED);
    for (let first = 0; first < 96; first += 1) table.fill(first, first + 20);
    expect(writes).toBeLessThan(96 / 10);
  });

  it("never overwrites what a round may still pick", () => {
    table.begin(5, SEED);
    table.fill(5, 5 + TABLE_ROWS); // no more than that, although rows are written in blocks
    expect(row(5)).toEqual(expected(5, 5));
    expect(() => table.fill(5, 6 + TABLE_ROWS)).toThrow("more than the table of numbers holds");
    table.fill(6, 6 + TABLE_ROWS);
    expect(row(5 + TABLE_ROWS)).toEqual(expected(5 + TABLE_ROWS, 5));
  });

  it("begins anew", () => {
    table.begin(0, 5);
    table.fill(0, 50);
    table.begin(10, SEED);
    table.fill(10, 20);
    expect(row(10)).toEqual(expected(10, 10));
  });

  it("has no angles behind the context", () => {
    table.begin(CAPACITY - 2, SEED);
    table.fill(CAPACITY - 2, CAPACITY + 2);
    expect(row(CAPACITY - 1).slice(1)).toEqual([CAPACITY - 1, 1 - CAPACITY]);
    expect(row(CAPACITY).slice(1)).toEqual([0, 0]);
  });
});
