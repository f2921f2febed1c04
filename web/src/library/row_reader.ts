// Rows of the table of per-layer embeddings, from its file: those that were read last stay in memory, the others of a call
// are read in the order in which they lie, each once, neighbours together.
import { counts } from "../stats";
import type { RowFile } from "./row_file";

/** Rows that are kept, with all of their tensors: of E2B in `q4f16` 1,664. */
const CACHE_BYTES = 8 * 2 ** 20;
/** Of one read of the file. */
const READ_BYTES = 2 ** 18;
/** Bytes between two rows that are read for nothing: a call of the file's costs about as much. */
const GAP_BYTES = 2 ** 14;

/** A tensor of the table, whose bytes are at an offset of the file, or in memory where the file took none. */
export interface Kept {
  readonly at: number;
  readonly nbytes: number;
  readonly rowBytes: number;
  memory: Uint8Array | undefined;
}

/** One part of the table: its rows, and its tensors in the window's order. */
export interface Split {
  readonly rows: number;
  readonly kept: readonly Kept[];
}

/** A row that no cache holds: where it lies, where it goes, and its place in the cache, if it gets one. */
interface Miss {
  readonly id: number;
  readonly split: Split;
  readonly row: number;
  readonly targets: readonly number[];
  readonly slot: number | undefined;
}

export class RowReader {
  /** Bytes of a row, by tensor, and where each begins in a slot of the cache. */
  private readonly rowBytes: readonly number[];
  private readonly offsets: readonly number[];
  private readonly slotBytes: number;
  private readonly total: number;
  private readonly free: number[];
  private readonly cache: Uint8Array;
  /** Slots by token; the one that was used last is the last one. */
  private readonly slots = new Map<number, number>();
  private scratch: Uint8Array | undefined;

  constructor(
    private readonly splits: readonly Split[],
    private readonly file: RowFile,
    cacheBytes = CACHE_BYTES,
  ) {
    this.rowBytes = splits[0]!.kept.map(({ rowBytes }) => rowBytes);
    this.slotBytes = this.rowBytes.reduce((sum, bytes) => sum + bytes, 0);
    this.offsets = this.rowBytes.map((_, kind) => this.rowBytes.slice(0, kind).reduce((sum, bytes) => sum + bytes, 0));
    this.total = splits.reduce((sum, { rows }) => sum + rows, 0);
    const count = Math.min(Math.floor(cacheBytes / this.slotBytes), this.total);
    this.cache = new Uint8Array(count * this.slotBytes);
    this.free = Array.from({ length: count }, (_, slot) => count - 1 - slot);
  }

  /**
   * The rows of `ids` one behind the other, of each tensor into the bytes of its own in `into`. Of an id that is not in
   * the table nothing is written. Throws where the file does not hold them; the cache has nothing of that call then.
   */
  read(ids: readonly number[], into: readonly Uint8Array[]): void {
    const places = new Map<number, number[]>();
    for (const [place, id] of ids.entries()) {
      if (id < 0 || id >= this.total) continue;
      counts.tableRows += 1;
      const found = places.get(id);
      if (found) found.push(place);
      else places.set(id, [place]);
    }
    const missing: number[] = [];
    for (const [id, targets] of places) if (!this.recall(id, targets, into)) missing.push(id);
    if (missing.length) this.fetch(missing, places, into);
  }

  /** A row that the cache has. */
  private recall(id: number, targets: readonly number[], into: readonly Uint8Array[]): boolean {
    const slot = this.slots.get(id);
    if (slot === undefined) return false;
    this.slots.delete(id);
    this.slots.set(id, slot);
    for (const [kind, bytes] of this.rowBytes.entries()) {
      const row = this.slotOf(slot, kind);
      for (const place of targets) into[kind]!.set(row, place * bytes);
    }
    return true;
  }

  private slotOf(slot: number, kind: number): Uint8Array {
    const begin = slot * this.slotBytes + this.offsets[kind]!;
    return this.cache.subarray(begin, begin + this.rowBytes[kind]!);
  }

  private fetch(
    missing: readonly number[],
    places: ReadonlyMap<number, readonly number[]>,
    into: readonly Uint8Array[],
  ): void {
    const held = this.makeRoom(missing.length);
    const withoutSlot = missing.length - held.length; // the first ones of a call, which are the oldest
    const misses = missing.map((id, i) => this.missOf(id, places.get(id)!, held[i - withoutSlot]));
    try {
      const sorted = [...misses].sort((a, b) => a.id - b.id);
      for (const kind of this.rowBytes.keys())
        for (let done = 0; done < sorted.length; ) done = this.readRun(sorted, done, kind, into[kind]!);
    } catch (error) {
      this.free.push(...held);
      throw error;
    }
    for (const { id, slot } of misses) if (slot !== undefined) this.slots.set(id, slot);
  }

  /** Slots for so many rows, or for as many as there are: the ones that were used longest ago make room. */
  private makeRoom(rows: number): number[] {
    for (const [id, slot] of this.slots) {
      if (this.free.length >= rows) break;
      this.slots.delete(id);
      this.free.push(slot);
    }
    return this.free.splice(Math.max(0, this.free.length - rows));
  }

  private missOf(id: number, targets: readonly number[], slot: number | undefined): Miss {
    let row = id;
    for (const split of this.splits) {
      if (row < split.rows) return { id, split, row, targets, slot };
      row -= split.rows;
    }
    throw new Error(`token ${id} has no row of per-layer embeddings, expected less than ${this.total}`);
  }

  /** Reads one tensor's rows from the first of them on that lie near each other; returns the number of the next one. */
  private readRun(sorted: readonly Miss[], first: number, kind: number, into: Uint8Array): number {
    const { split, row: begin } = sorted[first]!;
    const kept = split.kept[kind]!;
    const bytes = kept.rowBytes;
    const beginOf = (index: number) => sorted[index]!.row * bytes;
    let end = first + 1;
    while (
      end < sorted.length &&
      sorted[end]!.split === split &&
      beginOf(end) - beginOf(end - 1) - bytes <= GAP_BYTES &&
      beginOf(end) + bytes - begin * bytes <= READ_BYTES
    )
      end += 1;
    const run = this.bytesOf(kept, begin * bytes, beginOf(end - 1) + bytes);
    for (let index = first; index < end; index++) {
      const { row, targets, slot } = sorted[index]!;
      const found = run.subarray((row - begin) * bytes, (row - begin + 1) * bytes);
      for (const place of targets) into.set(found, place * bytes);
      if (slot !== undefined) this.slotOf(slot, kind).set(found);
    }
    return end;
  }

  private bytesOf(kept: Kept, begin: number, end: number): Uint8Array {
    if (kept.memory) return kept.memory.subarray(begin, end);
    if (!this.scratch || this.scratch.byteLength < end - begin)
      this.scratch = new Uint8Array(Math.max(READ_BYTES, end - begin));
    const found = this.scratch.subarray(0, end - begin);
    this.file.read(found, kept.at + begin);
    counts.tableReads += 1;
    counts.tableBytesRead += found.byteLength;
    return found;
  }
}
