// Clients and libraries that `gemma4-web/fast` was not made for. `below` acts before the module is imported, and so
// between it and the browser; `above` between it and the client.
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";

/** Kernels that do nothing, with the bindings of the real ones, on a device that is taken as tested before. */
export function emptyKernels() {
  globalThis.caches = { open: async () => ({ match: async () => new Response(String(Date.now() - 1000)) }) };
  const { createShaderModule } = GPUDevice.prototype;
  GPUDevice.prototype.createShaderModule = function (descriptor) {
    if (descriptor.code.includes("fn next_round(")) return createShaderModule.call(this, descriptor); // of the module
    const names = [...descriptor.code.matchAll(/@compute[^{]*?fn\s+(\w+)\s*\(/gs)].map((match) => match[1]);
    const code = names.map((name) => `@compute @workgroup_size(1) fn ${name}() {}`).join("\n");
    return createShaderModule.call(this, { ...descriptor, code });
  };
}

/** Keeps in `live.buffers` how many GPU buffers were made and neither destroyed nor collected. */
export function countBuffers(live) {
  const { createBuffer } = GPUDevice.prototype;
  const gone = new FinalizationRegistry((token) => (live.buffers -= token.destroyed ? 0 : 1));
  GPUDevice.prototype.createBuffer = function (descriptor) {
    const buffer = createBuffer.call(this, descriptor);
    const token = { destroyed: false };
    live.buffers += 1;
    gone.register(buffer, token);
    const destroy = buffer.destroy.bind(buffer);
    buffer.destroy = () => {
      if (!token.destroyed) live.buffers -= 1;
      token.destroyed = true;
      return destroy();
    };
    return buffer;
  };
}

/** Bytes of an argument of TVM's, and the type number of a tensor. */
const ANY_BYTES = 16;
const TENSOR_TYPE = 70;

/** Changes the exports of every library. */
function exportsChanged(change) {
  const { instantiate } = WebAssembly;
  WebAssembly.instantiate = async (...args) => {
    const made = await instantiate.apply(WebAssembly, args);
    if (!made.instance?.exports.TVMFFIFunctionCall) return made; // of Node's own
    const exports = { ...made.instance.exports };
    change(exports);
    const instance = Object.create(WebAssembly.Instance.prototype, { exports: { value: exports } });
    return { module: made.module, instance };
  };
}

/** From a call of the drafter's function on. */
function drafterTraps(from) {
  exportsChanged((exports) => {
    const { TVMFFIFunctionCall: original, memory } = exports;
    let params;
    let calls = 0;
    exports.TVMFFIFunctionCall = (handle, args, count, result) => {
      // Two functions take a state as the fourth of five arguments: prefill, which comes first, and the drafter's.
      const words = new Int32Array(memory.buffer, args, (5 * ANY_BYTES) / 4);
      if (count === 5 && words[12] > TENSOR_TYPE) {
        params ??= words[18];
        if (words[18] !== params && ++calls >= from) throw new WebAssembly.RuntimeError("unreachable");
      }
      return original(handle, args, count, result);
    };
  });
}

/** A client that uses the device in its own way: it sees `methods` in the place of the device's. */
function deviceChanged(tvmjs, methods) {
  const { detectGPUDevice } = tvmjs;
  tvmjs.detectGPUDevice = async () => {
    const found = await detectGPUDevice();
    const changed = methods(found.device);
    const get = (device, name) => {
      if (name in changed) return changed[name];
      const value = Reflect.get(device, name, device);
      return typeof value === "function" ? value.bind(device) : value;
    };
    return { ...found, device: new Proxy(found.device, { get }) };
  };
}

export const FAKES = {
  "library without interface": { below: () => exportsChanged((exports) => delete exports.gemma4_driver_interface) },
  "library of another version": {
    below: () =>
      exportsChanged((exports) => {
        const { gemma4_driver_interface: original, memory } = exports;
        exports.gemma4_driver_interface = () => {
          const address = original();
          const bytes = new Uint8Array(memory.buffer);
          const at = address + new TextDecoder().decode(bytes.slice(address, address + 40)).search(/\d/);
          bytes[at] = "9".charCodeAt(0);
          return address;
        };
      }),
  },
  "library without a function": { below: () => exportsChanged((exports) => delete exports.gemma4_driver_room) },
  "a drafter that traps": { below: () => drafterTraps(1) },
  "a drafter that traps when it is recorded again": { below: () => drafterTraps(2) },
  "another random generator": {
    above: (tvmjs) => {
      let state = 1;
      tvmjs.LinearCongruentialGenerator.prototype.randomFloat = () => {
        state = (state * 16807) % 2147483647;
        return state / 2147483647;
      };
    },
  },
  // A client that says how large its bindings are, one that marks its encoders, one that gives dynamic offsets.
  "sizes in bind groups": {
    above: (tvmjs) =>
      deviceChanged(tvmjs, (device) => ({
        createBindGroup: (descriptor) =>
          device.createBindGroup({
            ...descriptor,
            entries: descriptor.entries.map(({ binding, resource }) => ({
              binding,
              resource: { size: resource.buffer.size, ...resource },
            })),
          }),
      })),
  },
  "debug groups in encoders": {
    above: (tvmjs) =>
      deviceChanged(tvmjs, (device) => ({
        createCommandEncoder: (descriptor) => {
          const encoder = device.createCommandEncoder(descriptor);
          encoder.pushDebugGroup("client");
          encoder.popDebugGroup();
          return encoder;
        },
      })),
  },
  "dynamic offsets": {
    above: (tvmjs) =>
      deviceChanged(tvmjs, (device) => ({
        createCommandEncoder: (descriptor) => {
          const encoder = device.createCommandEncoder(descriptor);
          return {
            beginComputePass: (passDescriptor) => {
              const pass = encoder.beginComputePass(passDescriptor);
              return {
                setPipeline: (pipeline) => pass.setPipeline(pipeline),
                setBindGroup: (index, group) => pass.setBindGroup(index, group, []),
                dispatchWorkgroups: (...counts) => pass.dispatchWorkgroups(...counts),
                end: () => pass.end(),
              };
            },
            copyBufferToBuffer: (...args) => encoder.copyBufferToBuffer(...args),
            finish: () => encoder.finish(),
          };
        },
      })),
  },
};

/** Buffers and heap now and then in so many replies, once all that can be collected is. */
export async function leak(count, live, reply) {
  const samples = [];
  setFlagsFromString("--expose-gc");
  const collect = runInNewContext("gc");
  for (let i = 0; i < count; i++) {
    await reply(i);
    if (i % (count / 10) !== count / 10 - 1) continue;
    collect();
    await new Promise((resolve) => setTimeout(resolve, 50));
    collect();
    samples.push({ buffers: live.buffers, heap: process.memoryUsage().heapUsed });
  }
  return { samples };
}
