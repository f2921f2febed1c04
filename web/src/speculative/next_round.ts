// What the device works out between two rounds of drafts, so that the next one needs nothing of the host.
//
// `gather_drafts` runs between the drafts and the model: it puts the drafted tokens next to each other. `next_round`
// runs after the draws: it finds how many drafts came true, writes a record for the host, and writes all that the next
// round reads: its position and token, the state of its first draft, and the numbers and angles of its rows out of a
// table that the host has filled ahead. The number of rows is that of the grid of `gather_drafts`.
import type { Native } from "../gpu/native";

/** Drafts of a round at most: the kernels of a step of a few rows are for one row more. */
export const MAX_DRAFTS = 8;
export const MAX_ROWS = MAX_DRAFTS + 1;

/** Cells of the buffer of inputs, each at an offset that can be bound; in the last one is a number for each row. */
export const CELLS = { draftPositions: 0, positions: 1, temperature: 2, topP: 3, uniform: 4 } as const;

/** Positions that the table holds; a power of two. Position p has row p % TABLE_ROWS. */
export const TABLE_ROWS = 128;

/** A round's record: position, rows, accepted drafts, then the token of each row, then the one drawn from each. */
const RECORD_HEADER = 3;
export const RECORD_BYTES = 4 * (RECORD_HEADER + 2 * MAX_ROWS);

/** What a round came to. */
export interface RoundRecord {
  readonly position: number;
  readonly rows: number;
  readonly accepted: number;
  readonly drafts: readonly number[];
  readonly drawn: readonly number[];
}

export function readRecord(words: Int32Array): RoundRecord {
  const [position, rows, accepted] = words as unknown as [number, number, number];
  const drafts = [...words.subarray(RECORD_HEADER + 1, RECORD_HEADER + rows)];
  const drawn = [...words.subarray(RECORD_HEADER + MAX_ROWS, RECORD_HEADER + MAX_ROWS + rows)];
  return { position, rows, accepted, drafts, drawn };
}

/** Sizes that the kernels read, in words of four bytes. */
export interface RoundSizes {
  /** From a cell to the next one. */
  readonly stride: number;
  /** Of a state. */
  readonly state: number;
  /** Of a row of angles. */
  readonly rotary: number;
}

export const sizesInMemory = ({ stride, state, rotary }: RoundSizes) => Int32Array.of(stride, state, rotary, 0);

const THREADS = 256;

/**
 * Words are copied as integers, whatever they are. Seven storage buffers and a uniform one: every device allows eight.
 * Behind the tokens of `drawn` is the record. A row of `table` is a random number, then angles.
 */
export const ROUND_KERNELS = `
struct Sizes { stride: u32, state: u32, rotary: u32, unused: u32 }
@group(0) @binding(0) var<uniform> sizes: Sizes;
@group(0) @binding(1) var<storage, read_write> inputs: array<u32>;
@group(0) @binding(2) var<storage, read_write> ids: array<u32>;
@group(0) @binding(3) var<storage, read_write> drawn: array<u32>;
@group(0) @binding(4) var<storage, read> states: array<u32>;
@group(0) @binding(5) var<storage, read_write> hidden: array<u32>;
@group(0) @binding(6) var<storage, read> table: array<u32>;
@group(0) @binding(7) var<storage, read_write> rotary: array<u32>;
@group(0) @binding(8) var<storage, read> drafts: array<u32>;

@compute @workgroup_size(1)
fn gather_drafts(@builtin(workgroup_id) block: vec3<u32>, @builtin(num_workgroups) blocks: vec3<u32>) {
  let row = block.x;
  if (row > 0u) {
    ids[row] = drafts[(row - 1u) * sizes.stride];
  } else {
    let at = ${CELLS.positions}u * sizes.stride;
    inputs[at + 1u] = blocks.x;
    inputs[at + 2u] = inputs[at] + blocks.x;
  }
}

var<workgroup> kept: vec2<u32>; // accepted drafts, position of the next round

@compute @workgroup_size(${THREADS})
fn next_round(@builtin(local_invocation_index) thread: u32) {
  if (thread == 0u) {
    let at = ${CELLS.positions}u * sizes.stride;
    let position = inputs[at];
    let rows = inputs[at + 1u];
    let record = ${MAX_ROWS}u;
    var accepted = 0u;
    var is_true = true;
    for (var row = 0u; row < rows; row++) {
      let token = drawn[row];
      is_true = is_true && row + 1u < rows && ids[min(row + 1u, ${MAX_DRAFTS}u)] == token;
      accepted += select(0u, 1u, is_true);
      drawn[record + ${RECORD_HEADER}u + row] = ids[row];
      drawn[record + ${RECORD_HEADER + MAX_ROWS}u + row] = token;
    }
    drawn[record] = position;
    drawn[record + 1u] = rows;
    drawn[record + 2u] = accepted;
    let next = position + accepted + 1u;
    ids[0] = drawn[accepted];
    inputs[at] = next;
    inputs[${CELLS.draftPositions}u * sizes.stride] = next;
    inputs[${CELLS.draftPositions}u * sizes.stride + 2u] = next;
    kept = vec2<u32>(accepted, next);
  }
  workgroupBarrier();
  let now = kept;
  for (var i = thread; i < sizes.state; i += ${THREADS}u) {
    hidden[i] = states[now.x * sizes.state + i];
  }
  for (var row = 0u; row < ${MAX_ROWS}u; row++) {
    let from_row = ((now.y + row) % ${TABLE_ROWS}u) * (sizes.rotary + 1u);
    if (thread == row) {
      inputs[${CELLS.uniform}u * sizes.stride + row] = table[from_row];
    }
    for (var i = thread; i < sizes.rotary; i += ${THREADS}u) {
      rotary[row * sizes.rotary + i] = table[from_row + 1u + i];
    }
  }
}
`;

/** The bindings of each kernel: those that it names. */
export type Bound = "inputs" | "ids" | "drawn" | "states" | "hidden" | "table" | "rotary" | "drafts";
const BINDINGS: readonly Bound[] = ["inputs", "ids", "drawn", "states", "hidden", "table", "rotary", "drafts"];
const USED = {
  gather_drafts: ["inputs", "ids", "drafts"],
  next_round: ["inputs", "ids", "drawn", "states", "hidden", "table", "rotary"],
} as const satisfies Record<string, readonly Bound[]>;
type Name = keyof typeof USED;

export type RoundPipelines = Readonly<Record<Name, GPUComputePipeline>>;

/** Throws where the device refuses the kernels. */
export async function makeRoundPipelines(native: Native): Promise<RoundPipelines> {
  native.pushErrorScope("validation"); // what is wrong with the text comes with the pipelines, and not to the client
  const module = native.createShaderModule({ code: ROUND_KERNELS });
  const scope = native.popErrorScope();
  const make = (entryPoint: Name) =>
    native.createComputePipelineAsync({ layout: "auto", compute: { module, entryPoint } });
  const [gather_drafts, next_round] = await Promise.all([make("gather_drafts"), make("next_round"), scope]);
  return { gather_drafts, next_round };
}

/** The group of a kernel, which uses some of the buffers. */
export function bindRoundKernel(
  native: Native,
  pipelines: RoundPipelines,
  name: Name,
  sizes: GPUBuffer,
  buffers: Readonly<Record<Bound, GPUBuffer>>,
): GPUBindGroup {
  const used: readonly Bound[] = USED[name];
  const entries = BINDINGS.flatMap((bound, i) =>
    used.includes(bound) ? [{ binding: i + 1, resource: { buffer: buffers[bound] } }] : [],
  );
  entries.unshift({ binding: 0, resource: { buffer: sizes } });
  return native.createBindGroup({ layout: pipelines[name].getBindGroupLayout(0), entries });
}
