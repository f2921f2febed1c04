// The table of a run of rounds: the random number and the angles of each position, which the device picks for itself.
//
// It is a ring. A write to it comes after the rounds that were submitted before it and before those that follow (the
// queue's order), so that it is enough that no row is overwritten which a later round may still pick.
import type { DriverExports, Handle } from "../library/abi";
import { bits } from "../replay/multi_step";
import type { Library } from "../library/library";
import type { Native } from "../gpu/native";
import { TABLE_ROWS } from "./next_round";
import { nextState, uniformOf } from "../library/random";

/** Rows that are written beyond those that are needed, so that not every round writes some. */
const BLOCK = 16;
const POSITION_BYTES = 16;

export class RoundTable {
  readonly buffer: GPUBuffer;
  private readonly uniforms = new Int32Array(TABLE_ROWS);
  private readonly rowBytes: number;
  private end = 0; // the position after the last one in the table
  private randomState = 0;

  constructor(
    private readonly library: Library,
    private readonly native: Native,
    private readonly state: Handle,
    private readonly rotaryBytes: number,
  ) {
    this.rowBytes = 4 + rotaryBytes;
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_DST;
    this.buffer = native.createBuffer({ size: this.rowBytes * TABLE_ROWS, usage });
  }

  /** Begins at a position, which draws with the number after `randomState`. */
  begin(position: number, randomState: number): void {
    this.end = position;
    this.randomState = randomState;
  }

  /** The number, as it lies in memory, that a position of the table draws with. */
  uniformAt(position: number): number {
    return this.uniforms[position % TABLE_ROWS]!;
  }

  /** Makes sure of the rows before `needed`, where rounds may still begin at `first`, and no earlier. */
  fill(first: number, needed: number): void {
    if (needed <= this.end) return;
    if (needed > first + TABLE_ROWS)
      throw new Error("the rounds on their way are more than the table of numbers holds");
    const end = Math.min(needed + BLOCK, first + TABLE_ROWS);
    while (this.end < end) {
      const at = this.end % TABLE_ROWS;
      const count = Math.min(end - this.end, TABLE_ROWS - at);
      this.native.writeBuffer(this.buffer, at * this.rowBytes, this.rows(this.end, count));
      this.end += count;
    }
  }

  /** Angles of a position as the library would upload them; zeros behind its context. */
  angles(position: number): Uint8Array {
    const { exports, scratch }: { exports: DriverExports; scratch: number } = this.library;
    const isInside = exports.gemma4_driver_step(this.state, position, scratch, scratch + POSITION_BYTES) >= 0;
    const values = new Uint8Array(exports.memory.buffer, scratch + POSITION_BYTES, this.rotaryBytes);
    return isInside ? values : new Uint8Array(this.rotaryBytes);
  }

  destroy(): void {
    this.buffer.destroy();
  }

  private rows(first: number, count: number): Uint8Array<ArrayBuffer> {
    const bytes = new Uint8Array(count * this.rowBytes);
    const view = new DataView(bytes.buffer);
    for (let i = 0; i < count; i++) {
      this.randomState = nextState(this.randomState);
      const uniform = bits(uniformOf(this.randomState));
      this.uniforms[(first + i) % TABLE_ROWS] = uniform;
      view.setInt32(i * this.rowBytes, uniform, true);
      bytes.set(this.angles(first + i), i * this.rowBytes + 4);
    }
    return bytes;
  }
}
