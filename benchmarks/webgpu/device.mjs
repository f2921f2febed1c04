// Dawn opened as the client opens WebGPU, plus timestamps; device memory as WebGPU and the driver see it.
import { spawnSync } from "node:child_process";
import * as driver from "../../gemma4_compile/verification/webgpu_device.mjs";
import { dawn, tvmjs } from "./packages.mjs";

const FEATURES_WANTED = ["timestamp-query"];

/** Bytes of all living buffers of the device; `capture` returns which ones an action made. */
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
  const [version, used, sm, mem] = done.stdout
    .trim()
    .split("\n")[0]
    .split(",")
    .map((part) => part.trim());
  return { driver: version, usedBytes: Number(used) * 2 ** 20, clocksMhz: { sm: Number(sm), mem: Number(mem) } };
}

/**
 * Opens the device, with `features` of ours where it has them; `errors` collects every error that nobody asked for.
 * `prepare` runs when there is a `navigator.gpu` and nobody has asked it for anything.
 */
export async function openDevice({ skipValidation, features = [], prepare = async () => {} }) {
  const enable = [...driver.ALL_FEATURES, ...(skipValidation ? ["skip_validation"] : [])];
  driver.startDawn(dawn, { enable, disable: ["timestamp_quantization"] });
  const ledger = new BufferLedger();
  await prepare();
  const wanted = [...FEATURES_WANTED, ...features];
  const { device, info, errors } = await driver.openDevice(tvmjs, { features: wanted }); // stdout is for results
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

/** Runs a script's `main`: an error is a line and status 1, and Node does not wait for ever for the GPU. */
export async function runScript(main) {
  let code = 0;
  try {
    await main();
  } catch (error) {
    process.stderr.write(`error: ${error.stack ?? error}\n`);
    code = 1;
  }
  driver.release();
  process.exitCode = code;
  process.stdout.write("", () => process.exit(code));
}
