import { beforeEach, describe, expect, it } from "vitest";
import type { RowFile } from "../../src/library/row_file";
import { type Kept, RowReader, type Split } from "../../src/library/row_reader";
import { counts } from "../../src/stats";

/** Bytes of a row of either tensor. */
const BYTES = [6, 4] as const;
const ROW = BYTES[0] + BYTES[1];
const SPLITS = [3000, 1000] as const;
const TOTAL = SPLITS[0] + SPLITS[1];

/** Numbers that are not random, the same each time. */
function* numbers(seed: number): Generator<number, never> {
  for (let x = seed; ; ) {
    x = (Math.imul(x, 1664525) + 1013904223) >>> 0;
    yield x >>> 8;
  }
}

function setUp(cacheRows: number, isInMemory = false) {
  const bytes = new Uint8Array(TOTAL * ROW);
  const filler = numbers(7);
  for (let i = 0; i < bytes.length; i++) bytes[i] = filler.next().value;
  const reads: [at: number, bytes: number][] = [];
  let fails = false;
  const file = {
    read(into: Uint8Array, at: number) {
      reads.push([at, into.byteLength]);
      if (fails) throw new Error("the disk is gone");
      into.set(bytes.subarray(at, at + into.byteLength));
    },
  };
  let at = 0;
  const splits: Split[] = SPLITS.map((rows) => ({
    rows,
    kept: BYTES.map((rowBytes): Kept => {
      const nbytes = rows * rowBytes;
      const memory = isInMemory ? bytes.slice(at, at + nbytes) : undefined;
      at += nbytes;
      return { at: at - nbytes, nbytes, rowBytes, memory };
    }),
  }));
  /** Where a row of a tensor lies, by the file's layout alone. */
  const rowOf = (id: number, kind: number) => {
    const isFirst = id < SPLITS[0];
    const begin = isFirst ? 0 : SPLITS[0] * ROW;
    const tensor = begin + (kind === 0 ? 0 : (isFirst ? SPLITS[0] : SPLITS[1]) * BYTES[0]);
    const from = tensor + (isFirst ? id : id - SPLITS[0]) * BYTES[kind]!;
    return bytes.subarray(from, from + BYTES[kind]!);
  };
  const reader = new RowReader(splits, file as unknown as RowFile, cacheRows * ROW);
  const read = (ids: readonly number[]) => {
    const into = BYTES.map((size) => new Uint8Array(ids.length * size).fill(99));
    reader.read(ids, into);
    for (const [kind, size] of BYTES.entries())
      for (const [place, id] of ids.entries()) {
        const found = into[kind]!.subarray(place * size, (place + 1) * size);
        const isThere = id >= 0 && id < TOTAL;
        expect([...found], `row ${id}`).toEqual(isThere ? [...rowOf(id, kind)] : Array(size).fill(99));
      }
  };
  return { read, reads, fail: (now: boolean) => (fails = now) };
}

beforeEach(() => {
  Object.assign(counts, { tableRows: 0, tableReads: 0, tableBytesRead: 0 });
});

describe("RowReader", () => {
  it("reads a token's row once, a read for each tensor, as long as it is kept", () => {
    const { read, reads } = setUp(2);
    read([5]);
    read([3500]);
    read([5]);
    expect(reads.map(([, bytes]) => bytes)).toEqual([6, 4, 6, 4]);
    read([8]); // 3500 was used longest ago
    read([5]);
    expect(reads).toHaveLength(6);
    read([3500]);
    expect(reads).toHaveLength(8);
    expect([counts.tableRows, counts.tableReads, counts.tableBytesRead]).toEqual([6, 8, 4 * ROW]);
  });

  it("reads a chunk's rows each once, in the file's order, neighbours together, but not over a part's end", () => {
    const { read, reads } = setUp(100);
    read([3002, 10, 2999, 12, 10, 3000, 11, -1, 10, TOTAL]);
    const [first, second] = [0, SPLITS[0] * ROW];
    expect(reads).toEqual([
      [first + 10 * 6, 3 * 6],
      [first + 2999 * 6, 6],
      [second, 3 * 6],
      [first + 3000 * 6 + 10 * 4, (2999 - 10 + 1) * 4], // 11,944 bytes for nothing cost less than a read
      [second + 1000 * 6, 3 * 4],
    ]);
    expect(counts.tableRows).toBe(8);
    read([12, 3002]);
    expect(reads).toHaveLength(5);
  });

  it("keeps the last rows of a call that has more than there is room for", () => {
    const { read, reads } = setUp(3);
    read([50, 40, 30, 20, 10]);
    reads.length = 0;
    read([30, 20, 10]);
    expect(reads).toEqual([]);
    read([50]);
    expect(reads).toHaveLength(2);
  });

  it.each([0, 1, 7, 64, TOTAL + 1])("gives every call the table's own rows, with room for %i", (rows) => {
    const { read } = setUp(rows);
    const random = numbers(rows + 1);
    for (let call = 0; call < 60; call++) {
      const next = () => (random.next().value % 3 ? random.next().value % 40 : random.next().value % (TOTAL + 3));
      read(Array.from({ length: 1 + (random.next().value % 20) }, next));
    }
    expect(counts.tableReads).toBeGreaterThan(0);
  });

  it("gives those that are in memory, and reads nothing", () => {
    const { read, reads } = setUp(2, true);
    read([1, 3999, 1, 2]);
    read([1, 2]);
    expect(reads).toEqual([]);
  });

  it("keeps nothing of a read that fails, and goes on after it", () => {
    const { read, reads, fail } = setUp(2);
    read([1, 2]);
    fail(true);
    for (let i = 0; i < 3; i++) expect(() => read([3, 4])).toThrow("the disk is gone");
    fail(false);
    read([3, 4]);
    reads.length = 0;
    read([4, 3]);
    expect(reads).toEqual([]);
  });
});
