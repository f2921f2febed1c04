// Numbers of WebGPU's GPUBufferUsage, GPUMapMode and GPUShaderStage: Node has them not as globals, nor has every thread that has a
// device.
export const MAP_READ = 0x1;
export const COPY_SRC = 0x4;
export const COPY_DST = 0x8;
export const UNIFORM = 0x40;
export const STORAGE = 0x80;
export const QUERY_RESOLVE = 0x200;
/** Of a mapping. */
export const READ = 0x1;
/** Of a shader's stage. */
export const COMPUTE = 0x4;
