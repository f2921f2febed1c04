// A call of the client's, and room for the rows that it reads.
import type { Handle } from "./abi";

/** An argument or result as TVM passes it. */
export interface Value {
  readonly type: number;
  readonly handle: Handle;
}

/** A call of the client, as it lies in the library's memory. */
export interface Call {
  readonly handle: Handle;
  readonly args: number;
  readonly count: number;
  readonly result: number;
}

/** Stands in the calls for prompts, of which it may keep some. */
export interface KeptBeginnings {
  /** The status of a call of `prefill_tokens`, which it has run or answered. */
  prefill(call: Call): number;
  /** Lets go of all. */
  destroy(): void;
}

/** Room on the device for rows of the table of per-layer embeddings, in the table's place. */
export interface RowWindow {
  /** A library's parameters with it. */
  readonly params: Handle;
  /** Writes the rows of these tokens, after all that is submitted. */
  write(ids: readonly number[]): void;
}
