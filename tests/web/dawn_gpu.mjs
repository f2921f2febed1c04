// Dawn as `navigator.gpu` of Node, with validation on, every uncaptured error kept and every dispatch
// counted. Which Vulkan driver it finds is the caller's choice: VK_ICD_FILENAMES in the environment.
import { create, globals } from "webgpu";

export const counts = { dispatches: 0, submits: 0, writes: 0, buffers: 0 };
export const errors = [];

// While Dawn waits it asks for its next turn with setImmediate, at once and again. On a software driver that
// takes a core from the very compilation that it waits for.
globalThis.setImmediate = (callback, ...args) => setTimeout(callback, 1, ...args);

const instance = create([]);
Object.assign(globalThis, globals);
Object.defineProperty(globalThis, "navigator", { value: { gpu: instance }, configurable: true });

function count(prototype, method, name) {
  const original = prototype[method];
  prototype[method] = function (...args) {
    counts[name] += 1;
    return original.apply(this, args);
  };
}
count(GPUComputePassEncoder.prototype, "dispatchWorkgroups", "dispatches");
count(GPUQueue.prototype, "submit", "submits");
count(GPUQueue.prototype, "writeBuffer", "writes");
count(GPUDevice.prototype, "createBuffer", "buffers");

/** Opens the device as the client does and describes it. */
export async function openDevice(tvmjs, logger) {
  const log = console.log;
  console.log = logger; // the runtime reports limits that it falls back to
  const found = await tvmjs.detectGPUDevice().finally(() => (console.log = log));
  const { adapter, device } = found;
  device.addEventListener("uncapturederror", (event) => errors.push(event.error.message));
  device.lost.then((info) => {
    if (info.reason !== "destroyed") errors.push(`device lost: ${info.message}`);
  });
  const info = found.adapterInfo;
  return {
    device,
    description: {
      vendor: info.vendor,
      architecture: info.architecture,
      description: info.description,
      features: [...device.features],
      maxStorageBufferBindingSize: device.limits.maxStorageBufferBindingSize,
      maxComputeInvocationsPerWorkgroup: device.limits.maxComputeInvocationsPerWorkgroup,
      adapterFeatures: [...adapter.features],
      subgroupMinSize: info.subgroupMinSize,
      subgroupMaxSize: info.subgroupMaxSize,
    },
  };
}

/** Lets Dawn deliver what it still has to say: a trailing error arrives after the queue is done. */
export async function settle(device) {
  await device.queue.onSubmittedWorkDone();
  for (let i = 0; i < 3; i++) await new Promise((resolve) => setTimeout(resolve, 5));
}

/** Without this Node would wait for ever for the GPU. */
export function release() {
  delete globalThis.navigator;
}
