// A GPU device that looks for finished work at a timer and at submissions, as Firefox's does; or by itself, with a
// period of 0. Its clock is that of the test.
import type { WaitableDevice } from "../src/gpu/waits";
import { fakeBuffer } from "./fake_device";

export interface TimedDevice extends WaitableDevice {
  /** Keeps the device busy for so long. */
  work(ms: number): void;
  /** Further reads are refused. */
  isRefusing: boolean;
  /** How much later than it is done the work is told of. */
  latencyMs: number;
  readonly submissions: number;
  lose(): void;
  /** From now on only submissions look for finished work. */
  pauseTimer(): void;
  /** Ends the device's own timer. */
  stop(): void;
  asDevice(): GPUDevice;
}

interface Wait {
  at: number;
  resolve(value: undefined): void;
  reject(error: Error): void;
}

/** How long after a device was destroyed its end is told of. */
const END_MS = 30;

export function fakeTimedDevice(periodMs: number): TimedDevice {
  let toldOfEnd: () => void = () => undefined;
  let busyUntil = 0;
  let waits: Wait[] = [];
  let isLost = false;
  const look = () => {
    const done = waits.filter(({ at }) => at <= performance.now());
    waits = waits.filter((wait) => !done.includes(wait));
    for (const wait of done) wait.resolve(undefined);
  };
  const timer = periodMs > 0 ? setInterval(look, periodMs) : undefined;
  const wait = () =>
    new Promise<undefined>((resolve, reject) => {
      if (isLost || fake.isRefusing) return reject(new Error("AbortError"));
      const at = Math.max(busyUntil, performance.now()) + fake.latencyMs;
      waits.push({ at, resolve, reject });
      if (periodMs === 0) setTimeout(look, at - performance.now());
    });
  const fake = {
    isRefusing: false,
    latencyMs: 0,
    submissions: 0,
    createBuffer: ({ size, usage }: GPUBufferDescriptor) =>
      Object.assign(fakeBuffer(size, usage), {
        mapAsync: wait,
        unmap: () => undefined,
        getMappedRange: () => undefined,
      }),
    submit: () => {
      fake.submissions += 1;
      look();
    },
    onSubmittedWorkDone: wait,
    work: (ms: number) => {
      busyUntil = Math.max(busyUntil, performance.now()) + ms;
    },
    lose: () => {
      isLost = true;
      for (const { reject } of waits.splice(0)) reject(new Error("AbortError"));
    },
    pauseTimer: () => clearInterval(timer),
    stop: () => clearInterval(timer),
    asDevice: () => {
      const names = ["createBindGroup", "createBindGroupLayout", "createCommandEncoder", "createPipelineLayout"];
      names.push("createQuerySet");
      names.push("createShaderModule", "createComputePipelineAsync", "pushErrorScope", "popErrorScope");
      return {
        createBuffer: fake.createBuffer,
        queue: { submit: fake.submit, writeBuffer: () => undefined, onSubmittedWorkDone: wait },
        lost: new Promise((resolve) => {
          toldOfEnd = () => resolve({ reason: "destroyed" });
        }),
        destroy: () => setTimeout(() => toldOfEnd(), END_MS),
        ...Object.fromEntries(names.map((name) => [name, () => ({})])),
      } as unknown as GPUDevice;
    },
  };
  return fake as unknown as TimedDevice;
}
