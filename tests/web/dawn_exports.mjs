// What the library's C functions for a driver say of a DawnModel's state.

/** Calls every one of them once. */
export async function describe({ tvm, gpu, kv }) {
  const { exports, memory, webGPUContext } = tvm.lib;
  const call = (name, ...args) => exports[`gemma4_driver_${name}`](...args);
  const state = kv.getHandle();
  const text = memory.loadCString(call("interface"));
  const space = exports.TVMWasmAllocSpace(4096);
  const numbers = (count) => [...new Int32Array(exports.memory.buffer, space, count)];
  const count = call("state", state, space, 1024);
  const buffers = numbers(count);
  tvm.beginScope();
  const tensors = [
    tvm.getGlobalFunc("gemma4_kv_positions")(kv),
    tvm.getGlobalFunc("gemma4_kv_rotary")(kv),
    ...["key", "value"].map((name) => tvm.getGlobalFunc(`gemma4_kv_${name}`)(kv, tvm.scalar(0, "int64"))),
  ];
  const pair = tvm.makeTVMArray([tensors[0], tensors[1]]);
  const host = tensors.slice(0, 2).map((tensor) => tvm.empty(tensor.shape, tensor.dtype, tvm.cpu()).copyFrom(tensor));
  await gpu.sync();
  const [positions, rotary] = host.map((tensor) => [...tensor.toRawBytes()]);
  const stepBytes = call("step_bytes", state);
  // A one-token forward of the position that was uploaded last.
  const [last] = new Int32Array(Uint8Array.from(positions).buffer);
  const stepResult = call("step", state, last, space, space + 16);
  const step = [...new Uint8Array(exports.memory.buffer, space, 16 + stepBytes)];
  const onHost = tvm.empty([1], "float32", tvm.cpu());
  const view = tensors[2].view([tensors[2].shape.reduce((a, b) => a * b)]);
  const useCounts = [call("use_count", state)];
  exports.TVMFFIObjectIncRef(state);
  useCounts.push(call("use_count", state));
  exports.TVMFFIObjectDecRef(state);
  useCounts.push(call("use_count", state));
  const told = {
    interface: JSON.parse(text),
    count,
    state: buffers,
    known: buffers.every((number) => webGPUContext.bufferTable[number] !== undefined),
    tensors: tensors.map((tensor) => call("buffer", tensor.getHandle())),
    data: tensors.map((tensor) => tensor.getDataPtr()),
    ofPair: call("buffer", pair.getHandle()),
    isSame: call("tensor", pair.getHandle()) === tensors[0].getHandle(),
    onHost: call("buffer", onHost.getHandle()),
    ofView: call("buffer", view.getHandle()),
    ofState: [call("buffer", state), call("tensor", state)],
    ofTensor: ["length", "version", "room", "step_bytes"].map((name) => call(name, tensors[0].getHandle())),
    useCounts,
    length: call("length", state),
    version: call("version", state),
    room: call("room", state),
    stepResult,
    step,
    uploaded: [...positions, ...rotary.slice(0, stepBytes)],
  };
  exports.TVMWasmFreeSpace(space);
  tvm.endScope();
  return told;
}
