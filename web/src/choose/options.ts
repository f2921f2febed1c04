// What a caller of chooseLibrary sets and gets.

/** The part of an adapter that is judged; the adapter is not used up. */
export type JudgedAdapter = Pick<GPUAdapter, "features" | "limits" | "info">;

export interface ChooseOptions {
  /** The name of the library to take. An error if the package has none of that name; whether it fits is not asked. */
  readonly library?: string;
  /** false: the one that is expected to be the fastest, without a measurement. */
  readonly measure?: boolean;
  /**
   * Whether gemma4-web/fast will be between the client and the device: it sets the size of subgroups where it can. By
   * default as in this thread; without that module no.
   */
  readonly fast?: boolean;
  /** How a file of the package comes; by default as `fetch`. */
  readonly fetch?: (url: string) => Promise<Response>;
}

/** A library, as a part of a WebLLM model record. */
export interface Choice {
  /** The address of the library's file. */
  model_lib: string;
  /** Features without which the client refuses the model. */
  required_features: string[];
  name: string;
  /** Why this one, in a sentence. */
  why: string;
  /** The name of the library's file. */
  file: string;
  /** What came of the libraries that were measured now, in their order. */
  measured: Measured[];
}

export interface Measured {
  name: string;
  /** Of the measured kernels; undefined where they were not timed. */
  microseconds?: number;
  /** Why it was not timed: wrong answers, or no time. */
  problem?: string;
}

/** Where the table of per-layer embeddings is: `host` is a file of the browser's, of which rows come to the device. */
export type TablePlace = "device" | "host";

/** Sizes in bytes. */
export interface TableOptions {
  /** Where it is to lie; by default where it is best. */
  readonly place?: TablePlace | undefined;
  /** The most that the model may take of the device's memory; by default what the device lets a page have. */
  readonly memoryBytes?: number;
  /** Whether `useDrafter` will follow. */
  readonly drafts?: boolean;
  /** What the model takes, and of it what the table does: by default as `provenance.json` says, at the whole context. */
  readonly needs?: { readonly neededBytes: number; readonly savedBytes: number };
  /** false: the file of a table on the host goes with the model; by default it is kept for the next load of the package. */
  readonly keep?: boolean;
  /** The name of the library that is loaded; by default the one that `chooseLibrary` chose last, or the package's first. */
  readonly library?: string;
  /** How a file of the package comes; by default as `fetch`. */
  readonly fetch?: (url: string) => Promise<Response>;
}

/** Where it lies, and why. */
export interface TableChoice {
  place: TablePlace;
  /** In a sentence, without its full stop. */
  why: string;
  /** Bytes of the device's memory that a table on the host saves, whichever place it has. */
  savedBytes: number;
}
