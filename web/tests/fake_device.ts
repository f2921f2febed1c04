// A GPU device that writes down what it is asked for.
import type { Native } from "../src/gpu/native";

export interface Asked {
  readonly calls: string[];
  readonly native: Native;
}

let made = 0;

export function fakeBuffer(size = 16, usage = 0x80): GPUBuffer {
  return { size, usage, label: `b${++made}`, destroy: () => undefined } as unknown as GPUBuffer;
}

export function fakeNative(): Asked {
  const calls: string[] = [];
  const pass = {
    setPipeline: (pipeline: { label: string }) => calls.push(`pipeline ${pipeline.label}`),
    setBindGroup: (_: number, group: { label: string }) => calls.push(`group ${group.label}`),
    dispatchWorkgroups: (x: number, y: number, z: number) => calls.push(`dispatch ${x} ${y} ${z}`),
    end: () => calls.push("end"),
  };
  const encoder = () => ({
    beginComputePass: () => {
      calls.push("pass");
      return pass;
    },
    copyBufferToBuffer: (a: GPUBuffer, _: number, b: GPUBuffer) => calls.push(`copy ${a.label} ${b.label}`),
    pushDebugGroup: (name: string) => calls.push(`debug ${name}`),
    finish: () => {
      calls.push("finish");
      return {};
    },
  });
  const native = {
    createBuffer: ({ size, usage }: GPUBufferDescriptor) => fakeBuffer(size, usage),
    createBindGroup: () => ({ label: `g${++made}` }),
    createCommandEncoder: () => encoder(),
    pushErrorScope: () => undefined,
    popErrorScope: () => Promise.resolve(null),
    submit: (buffers: unknown[]) => calls.push(`submit ${buffers.length}`),
    writeBuffer: (buffer: GPUBuffer, offset: number) => calls.push(`write ${buffer.label} ${offset}`),
  } as unknown as Native;
  return { calls, native };
}
