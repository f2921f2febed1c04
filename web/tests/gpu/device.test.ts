import { beforeEach, describe, expect, it } from "vitest";
import { Device } from "../../src/gpu/device";
import { fakeBuffer } from "../fake_device";

let waits: number;
let device: Device;
let queue: GPUQueue;

beforeEach(() => {
  waits = 0;
  Object.assign(globalThis, { GPUBufferUsage: { MAP_READ: 1, COPY_SRC: 4, COPY_DST: 8, UNIFORM: 64, STORAGE: 128 } });
  const nothing = () => ({});
  queue = {
    submit: nothing,
    writeBuffer: nothing,
    onSubmittedWorkDone: async () => {
      waits += 1;
    },
  } as unknown as GPUQueue;
  const methods = [
    "createBindGroup",
    "createBindGroupLayout",
    "createCommandEncoder",
    "createPipelineLayout",
    "createShaderModule",
    "createComputePipelineAsync",
    "pushErrorScope",
    "popErrorScope",
  ];
  const made = {
    queue,
    lost: new Promise(() => undefined),
    destroy: nothing,
    createBuffer: ({ size, usage }: GPUBufferDescriptor) =>
      Object.assign(fakeBuffer(size, usage), {
        mapAsync: () => Promise.resolve(),
        getMappedRange: nothing,
        unmap: nothing,
      }),
    ...Object.fromEntries(methods.map((name) => [name, nothing])),
  } as unknown as GPUDevice;
  device = new Device(made, {} as GPUAdapterInfo, { claims: () => true, isCalling: () => false });
});

describe("waiting for the queue", () => {
  it("is spared once between a prompt and the draw from it", async () => {
    device.device.createBuffer({ size: 4, usage: GPUBufferUsage.STORAGE });
    device.isPromptUndrawn = true;
    await queue.onSubmittedWorkDone();
    expect(waits).toBe(0);
    await queue.onSubmittedWorkDone();
    expect(waits).toBe(1);
  });

  it("is done once the host reads, and by a plain device", async () => {
    const buffer = device.device.createBuffer({ size: 4, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
    device.isPromptUndrawn = true;
    void buffer.mapAsync(1);
    await queue.onSubmittedWorkDone();
    expect(waits).toBe(1);
    device.isPromptUndrawn = true;
    device.makePlain();
    await queue.onSubmittedWorkDone();
    expect(waits).toBe(2);
  });
});
