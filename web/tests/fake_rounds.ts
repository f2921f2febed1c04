// A device in the place of the one that runs rounds: it does what the kernels do, in the order of the submissions.
import type { Dependent } from "../src/gpu/buffers";
import type { FirstRound, RoundOwner } from "../src/speculative/round_kernels";
import type { Library } from "../src/library/library";
import type { Native } from "../src/gpu/native";
import { MAX_ROWS, RECORD_BYTES, TABLE_ROWS } from "../src/speculative/next_round";
import { RoundTable } from "../src/speculative/round_table";

export interface DoneRound {
  readonly position: number;
  readonly rows: number;
  readonly accepted: number;
  readonly drawn: readonly number[];
  readonly temperature: number;
}

/** A buffer for the host: what is copied to it, and when. */
export interface FakeStaging {
  content: Int32Array;
  /** Milliseconds until the copy arrives, where a test's clock counts them. */
  ms: number;
}

export const device = {
  fails: false,
  capacity: 4096,
  ms: 10,
  msPerRow: 0,
  /** Drafts that come true in a round. */
  right: (_round: number): number => 9,
  /** The token drawn after `token`, with a number as it lies in memory. */
  draw: (token: number, position: number, _uniform: number): number => (31 * token + 7 * position + 3) % 1009,
  /** A row of keys and values, of a token. */
  write: (_position: number, _token: number): void => undefined,
  rounds: [] as DoneRound[],
  /** Of the latest kernels: hears that a buffer of theirs goes. */
  dependent: undefined as Dependent | undefined,
};

export class FakeRoundKernels {
  readonly table: RoundTable;
  private readonly memory = new Int32Array(TABLE_ROWS);
  private position = 0;
  private token = 0;
  private temperature = 0;
  private uniforms: number[] = [];
  private rows = 1;
  isDestroyed = false;

  constructor(_owner?: RoundOwner, dependent?: Dependent) {
    device.dependent = dependent;
    if (device.fails) throw new Error("not such a library");
    const native = {
      createBuffer: () => ({ destroy: () => undefined }),
      writeBuffer: (_: GPUBuffer, offset: number, bytes: Uint8Array) =>
        this.memory.set(new Int32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4), offset / 4),
    } as unknown as Native;
    const exports = {
      memory: new WebAssembly.Memory({ initial: 1 }),
      gemma4_driver_step: (_: number, position: number) => (position < device.capacity ? 0 : -1),
    };
    this.table = new RoundTable({ exports, scratch: 0 } as unknown as Library, native, 1, 0);
  }

  begin({ position, token, temperature, randomState }: FirstRound): void {
    this.table.begin(position, randomState);
    this.table.fill(position, position + MAX_ROWS);
    Object.assign(this, { position, token, temperature });
    this.pick();
  }

  draft(_count: number): [] {
    return [];
  }

  run(rows: number): [] {
    this.rows = rows;
    return [];
  }

  /** The round runs, and its record goes to `target`. */
  copyRecord(_: GPUCommandEncoder, target: GPUBuffer): void {
    const { position, rows, temperature, uniforms } = this;
    const [tokens, drawn] = [[this.token], [] as number[]];
    const right = device.right(device.rounds.length);
    for (let row = 0; row < rows; row++) {
      drawn.push(device.draw(tokens[row]!, position + row, uniforms[row]!));
      if (row + 1 < rows) tokens.push(row < right ? drawn[row]! : drawn[row]! + 1);
    }
    for (const [row, token] of tokens.entries()) device.write(position + row, token);
    const accepted = Math.min(right, rows - 1);
    device.rounds.push({ position, rows, accepted, drawn, temperature });
    this.position = position + accepted + 1;
    this.token = drawn[accepted]!;
    this.pick();
    const staging = target as unknown as FakeStaging;
    staging.content = new Int32Array(RECORD_BYTES / 4);
    staging.content.set([position, rows, accepted, ...tokens]);
    staging.content.set(drawn, 3 + MAX_ROWS);
    staging.ms = device.ms + device.msPerRow * rows;
  }

  destroy(): void {
    this.isDestroyed = true;
  }

  private pick(): void {
    this.uniforms = Array.from({ length: MAX_ROWS }, (_, row) => this.memory[(this.position + row) % TABLE_ROWS]!);
  }
}
