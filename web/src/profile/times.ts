// What a profile says. The declarations that users get hold these types and nothing of how they are measured.

/** All launches of a kernel in a step. */
export interface KernelTime {
  readonly kernel: string;
  /** Kind of its operator; empty where the library does not say. */
  readonly operator: string;
  readonly launches: number;
  readonly microseconds: number;
  /** Of the time of all kernels, from 0 to 1. */
  readonly share: number;
  /** Of the weights and other buffers that it only reads; undefined where it may read a part of them. */
  readonly bytes?: number;
}

export interface StepProfile {
  /** A chunk of a prompt, or a decoded token with its sampling. */
  readonly step: "prefill" | "decode";
  /** Of the chunk; 1 for a decoded token. */
  readonly tokens: number;
  /** The time of the step as it is in a chat: of a prompt until its first token is drawn, of a token on average. */
  readonly wallMicroseconds: number;
  /** Longest first. */
  readonly kernels: readonly KernelTime[];
}

export interface Profile {
  /** Whose clock timed the kernels: the device's timestamps, or the browser's clock around submissions. */
  readonly clock: "device" | "browser";
  /** The library's, as the adapter tells of it. */
  readonly device: { readonly vendor: string; readonly architecture: string; readonly description: string };
  readonly steps: readonly StepProfile[];
}
