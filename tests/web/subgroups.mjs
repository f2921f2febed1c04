// Subgroups of any size on a device whose own are smaller: what threads exchange goes through workgroup memory.
//
// No software adapter has subgroups of 32: lavapipe takes LP_NATIVE_VECTOR_WIDTH=1024, and reports 32, but its compute
// shaders stay at 16. Kernels exchange float32 where all threads of a workgroup come by (Tint refuses a barrier anywhere
// else), by their first coordinate. A thread that does not exist answers with a value that would show in any sum.
const NOBODY = "3e38f";
const FEATURE = /enable subgroups;/g;
const CALL = /\bsubgroup(ShuffleDown|ShuffleXor|Shuffle)\(/g;
const THREADS = /@workgroup_size\((\d+), 1, 1\)/;

const exchanges = (threads, size) => `
var<workgroup> exchanged : array<f32, ${threads}>;
fn exchange(thread : u32, value : f32, lane : u32) -> f32 {
  workgroupBarrier();
  exchanged[thread] = value;
  workgroupBarrier();
  let other = thread / ${size}u * ${size}u + lane;
  if (lane >= ${size}u || other >= ${threads}u) { return ${NOBODY}; }
  return exchanged[other];
}
fn exchangeShuffle(thread : u32, value : f32, lane : u32) -> f32 { return exchange(thread, value, lane); }
fn exchangeShuffleDown(thread : u32, value : f32, by : u32) -> f32 {
  return exchange(thread, value, thread % ${size}u + by);
}
fn exchangeShuffleXor(thread : u32, value : f32, bits : u32) -> f32 {
  return exchange(thread, value, (thread % ${size}u) ^ bits);
}
`;

/** The text of a kernel without subgroups of its own; throws for an operation that is not known here. */
export function withoutSubgroups(code, size) {
  const body = code.replace(FEATURE, "");
  const found = body.replace(CALL, "exchange$1(threadIdx.x, ");
  if (/\bsubgroup[A-Z_]/.test(found)) throw new Error(`an operation of subgroups that is not emulated: ${found}`);
  return found === body ? body : found + exchanges(Number(THREADS.exec(body)[1]), size);
}

/** From now on, shader modules have subgroups of `size` threads; counts the exchanges in `counts`. */
export function emulateSubgroups(size, counts) {
  const { createShaderModule } = GPUDevice.prototype;
  GPUDevice.prototype.createShaderModule = function (descriptor) {
    counts.exchanges += (descriptor.code.match(CALL) ?? []).length;
    return createShaderModule.call(this, { ...descriptor, code: withoutSubgroups(descriptor.code, size) });
  };
}
