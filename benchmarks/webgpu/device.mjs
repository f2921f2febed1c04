// Dawn opened as the client opens WebGPU, plus timestamps; device memory as WebGPU and the driver see it.
import { spawnSync } from "node:child_process";
import { dawn, tvmjs } from "./packages.mjs";

const FEATURES_WANTED = ["timestamp-query"];

/** Bytes of all living buffers of the device; `capture` tells which ones an action made. */
class BufferLedger {
  liveBytes = 0;
  peakBytes = 0;
  #living = new Set();
  #captured = null;

  constructor() {
    const ledger = this;
    const { createBuffer } = GPUDevice.prototype;
    const { destroy } = GPUBuffer.prototype;
    GPUDevice.prototype.createBuffer = function (descriptor) {
      const buffer = createBuffer.call(this, descriptor);
      ledger.#add(buffer);
      return buffer;
    };
    GPUBuffer.prototype.destroy = function () {
      ledger.#remove(this);
      return destroy.call(this);
    };
  }

  /** Runs `action`; returns its result and the buffers it made. */
  capture(action) {
    this.#captured = [];
    try {
      return { result: action(), buffers: this.#captured };
    } finally {
      this.#captured = null;
    }
  }

  #add(buffer) {
    this.#living.add(buffer);
    this.#captured?.push(buffer);
    this.liveBytes += buffer.size;
    this.peakBytes = Math.max(this.peakBytes, this.liveBytes);
  }

  #remove(buffer) {
    if (this.#living.delete(buffer)) this.liveBytes -= buffer.size;
  }
}

/** Driver, used memory and clocks of the first NVIDIA GPU, or null. */
export function nvidiaSmi() {
  const query = "--query-gpu=driver_version,memory.used,clocks.sm,clocks.mem";
  const done = spawnSync("nvidia-smi", [query, "--format=csv,noheader,nounits"], { encoding: "utf8" });
  if (done.status !== 0) return null;
  const [driver, used, sm, mem] = done.stdout
    .trim()
    .split("\n")[0]
    .split(",")
    .map((part) => part.trim());
  return { driver, usedBytes: Number(used) * 2 ** 20, clocksMhz: { sm: Number(sm), mem: Number(mem) } };
}

/**
 * Opens the device, with `features` of ours where it has them; `errors` collects every error that nobody asked for.
 * `prepare` runs when there is a `navigator.gpu` and nobody has asked it for anything.
 */
export async function openDevice({ skipValidation, features = [], prepare = async () => {} }) {
  const toggles = ["allow_unsafe_apis", "vulkan_enable_f16_on_nvidia"];
  if (skipValidation) toggles.push("skip_validation");
  const gpu = dawn.create([
    `enable-dawn-features=${toggles.join(",")}`,
    "disable-dawn-features=timestamp_quantization",
  ]);
  Object.assign(globalThis, dawn.globals);
  Object.defineProperty(globalThis, "navigator", { value: { gpu }, configurable: true });
  const ledger = new BufferLedger();
  const { requestDevice } = GPUAdapter.prototype;
  GPUAdapter.prototype.requestDevice = function (descriptor) {
    const wanted = [...FEATURES_WANTED, ...features].filter((name) => this.features.has(name));
    const requiredFeatures = [...descriptor.requiredFeatures, ...wanted];
    return requestDevice.call(this, { ...descriptor, requiredFeatures });
  };
  await prepare();
  const print = console.log;
  console.log = console.error; // standard output is for results
  const found = await tvmjs.detectGPUDevice(); // the client's own choice of limits and features
  console.log = print;
  GPUAdapter.prototype.requestDevice = requestDevice;
  const { device, adapterInfo: info } = found;
  const errors = [];
  device.addEventListener("uncapturederror", (event) => errors.push(event.error.message));
  device.lost.then((lost) => {
    if (lost.reason !== "destroyed") errors.push(`device lost: ${lost.message}`);
  });
  const description = {
    name: info.device && info.description ? `${info.device} (${info.description})` : info.device,
    vendor: info.vendor,
    architecture: info.architecture,
    driver: nvidiaSmi()?.driver ?? info.description,
    onCpu: /llvmpipe|swiftshader/i.test(`${info.device} ${info.description}`),
    features: [...device.features].sort(),
    maxStorageBufferBindingSize: device.limits.maxStorageBufferBindingSize,
  };
  return { device, description, ledger, errors };
}

/** Lets Dawn deliver what it still has to say: a trailing error arrives after the queue is done. */
export async function settle({ device, errors }) {
  await device.queue.onSubmittedWorkDone();
  for (let i = 0; i < 3; i++) await new Promise((resolve) => setTimeout(resolve, 5));
  if (errors.length) throw new Error(`WebGPU: ${errors.slice(0, 5).join("\n")}`);
}

/** Runs a script's `main`: an error is a line and status 1, and Node does not wait for ever for the GPU. */
export async function runScript(main) {
  let code = 0;
  try {
    await main();
  } catch (error) {
    process.stderr.write(`error: ${error.stack ?? error}\n`);
    code = 1;
  }
  delete globalThis.navigator;
  process.exitCode = code;
  process.stdout.write("", () => process.exit(code));
}
