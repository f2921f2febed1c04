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
