// What kernels pass on their way from a device to the client: it is put on the device from above.

export interface KernelGate {
  /** A kernel's text as the device is to compile it. */
  pinned(code: string): string;
  /** Resolves when the kernel may be used; rejects where it must not be. */
  check(kernel: string, pipeline: GPUComputePipeline, layout: GPUBindGroupLayout): Promise<void>;
}
