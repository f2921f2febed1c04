// Dawn as `navigator.gpu` of Node, with validation on, every uncaptured error kept and every dispatch counted.
import path from "node:path";
import { fileURLToPath } from "node:url";
import * as driver from "../../gemma4_compile/verification/webgpu_device.mjs";

export const NODE_MODULES = path.join(path.dirname(fileURLToPath(import.meta.url)), "node_modules");
export const counts = { dispatches: 0, submits: 0, writes: 0, buffers: 0, bufferBytes: 0 };
export const errors = [];
export const log = [];
export const logger = (...args) => log.push(args.join(" "));

driver.pollGently();
driver.startDawn(await driver.loadDawn(NODE_MODULES));

function count(prototype, method, name) {
  const original = prototype[method];
  prototype[method] = function (...args) {
    counts[name] += 1;
    if (name === "buffers") counts.bufferBytes += args[0].size;
    return original.apply(this, args);
  };
}
count(GPUComputePassEncoder.prototype, "dispatchWorkgroups", "dispatches");
count(GPUQueue.prototype, "submit", "submits");
count(GPUQueue.prototype, "writeBuffer", "writes");
count(GPUDevice.prototype, "createBuffer", "buffers");

/** Opens the device as the client does and describes it. */
export async function openDevice(tvmjs) {
  const { adapter, device, info } = await driver.openDevice(tvmjs, { log: logger, errors });
  return {
    device,
    errors,
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

/** Runs a test's program; its result.json has the errors and what the runtime said. */
export const runJob = (job, main, more = () => ({})) => driver.runJob(job, main, () => ({ ...more(), errors, log }));
