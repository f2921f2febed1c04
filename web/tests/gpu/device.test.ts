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
    "createQuerySet",
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

describe("a kernel on its way to the client", () => {
  const compiled: string[] = [];
  const wrong = "computes wrong results";

  beforeEach(() => {
    compiled.length = 0;
    device.device.createShaderModule = ({ code }) => ({ label: String(compiled.push(code)) }) as GPUShaderModule;
    device.device.createBuffer({ size: 4, usage: GPUBufferUsage.STORAGE }); // the library claims the device
  });

  const load = (entryPoint: string) => {
    const layout = device.device.createBindGroupLayout({ entries: [] });
    return device.device.createComputePipelineAsync({
      layout: device.device.createPipelineLayout({ bindGroupLayouts: [layout] }),
      compute: { module: device.device.createShaderModule({ code: "fn" }), entryPoint },
    });
  };

  it("passes the gate, which changes its text and may refuse it", async () => {
    device.gate = {
      pinned: (code) => `${code} pinned`,
      check: async (kernel) => {
        if (kernel === "wrong_kernel") throw new Error(wrong);
      },
    };
    await load("right_kernel");
    await expect(load("wrong_kernel")).rejects.toThrow(wrong);
    expect(compiled).toEqual(["fn pinned", "fn pinned"]);
  });

  it("is left as it is where there is none", async () => {
    await load("wrong_kernel");
    expect(compiled).toEqual(["fn"]);
  });
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

describe("an observer of the client's waits", () => {
  it("is between every wait and the client, and keeps what the client lets go", async () => {
    const seen: boolean[] = [];
    const kept: (() => void)[] = [];
    const waited = async <T>(wait: Promise<T>, isRead: boolean) => {
      seen.push(isRead);
      return wait;
    };
    const large = device.device.createBuffer({ size: 4096, usage: GPUBufferUsage.STORAGE });
    const read = device.device.createBuffer({ size: 4, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
    device.observer = { waited, keep: (destroy) => kept.push(destroy) };
    device.isPromptUndrawn = true; // it is to see the wait for a prompt, too
    await queue.onSubmittedWorkDone();
    await read.mapAsync(1);
    large.destroy();
    const small = device.device.createBuffer({ size: 4, usage: 128 | 4 | 8 });
    small.destroy(); // and does not give it to the next one, whatever is in it
    expect(device.device.createBuffer({ size: 4, usage: 128 | 4 | 8 })).not.toBe(small);
    expect([seen, waits, kept.length]).toEqual([[false, true], 1, 2]);
    device.observer = undefined;
    device.device.createBuffer({ size: 4096, usage: GPUBufferUsage.STORAGE }).destroy();
    await queue.onSubmittedWorkDone();
    expect([seen.length, kept.length]).toEqual([2, 2]);
  });
});
