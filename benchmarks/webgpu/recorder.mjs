// Records what one step gives to the GPU: pipelines, bindings, uniforms and sizes of its dispatches.

const names = new WeakMap(); // pipeline -> kernel

/** Remembers every pipeline's entry point from now on; call it before a library is loaded. */
export function namePipelines() {
  const { createComputePipeline, createComputePipelineAsync } = GPUDevice.prototype;
  GPUDevice.prototype.createComputePipeline = function (descriptor) {
    const pipeline = createComputePipeline.call(this, descriptor);
    names.set(pipeline, descriptor.compute.entryPoint);
    return pipeline;
  };
  GPUDevice.prototype.createComputePipelineAsync = async function (descriptor) {
    const pipeline = await createComputePipelineAsync.call(this, descriptor);
    names.set(pipeline, descriptor.compute.entryPoint);
    return pipeline;
  };
}

/** Replaces methods of WebGPU's classes; returns a function that puts the old ones back. */
function patch(replacements) {
  const undo = replacements.map(([{ prototype }, method, replace]) => {
    const original = prototype[method];
    prototype[method] = replace(original);
    return () => (prototype[method] = original);
  });
  return () => {
    for (const restore of undo) restore();
  };
}

/**
 * Runs `step` and returns {launches, copies, release, result}.
 *
 * A launch is {kernel, pipeline, layout, entries, uniforms, groups}; `uniforms` holds, by binding, the
 * contents that a uniform buffer had. Buffers that the step lets go of live until `release()`, so that
 * its launches can be run again.
 */
export async function record(step) {
  const launches = [];
  const bindGroups = new WeakMap();
  const contents = new WeakMap();
  const passes = new WeakMap();
  const doomed = new Set();
  let copies = 0;
  const restore = patch([
    [
      GPUDevice,
      "createBindGroup",
      (original) =>
        function (descriptor) {
          const group = original.call(this, descriptor);
          bindGroups.set(group, descriptor);
          return group;
        },
    ],
    [
      GPUQueue,
      "writeBuffer",
      (original) =>
        function (buffer, offset, data, ...rest) {
          if (buffer.usage & GPUBufferUsage.UNIFORM) contents.set(buffer, data.slice(0));
          return original.call(this, buffer, offset, data, ...rest);
        },
    ],
    [
      GPUCommandEncoder,
      "copyBufferToBuffer",
      (original) =>
        function (...args) {
          copies += 1;
          return original.apply(this, args);
        },
    ],
    [
      GPUComputePassEncoder,
      "setPipeline",
      (original) =>
        function (pipeline) {
          passes.set(this, { ...passes.get(this), pipeline });
          return original.call(this, pipeline);
        },
    ],
    [
      GPUComputePassEncoder,
      "setBindGroup",
      (original) =>
        function (index, group) {
          passes.set(this, { ...passes.get(this), group });
          return original.call(this, index, group);
        },
    ],
    [
      GPUComputePassEncoder,
      "dispatchWorkgroups",
      (original) =>
        function (...groups) {
          const { pipeline, group } = passes.get(this);
          const { layout, entries } = bindGroups.get(group);
          const uniforms = new Map();
          for (const { binding, resource } of entries) {
            const content = contents.get(resource.buffer);
            if (content) uniforms.set(binding, content);
          }
          const kernel = names.get(pipeline) ?? "unnamed";
          launches.push({ kernel, pipeline, layout, entries, uniforms, groups });
          return original.apply(this, groups);
        },
    ],
  ]);
  const keep = patch([
    [
      GPUBuffer,
      "destroy",
      () =>
        function () {
          doomed.add(this);
        },
    ],
  ]);
  let result;
  try {
    result = await step();
  } finally {
    restore();
  }
  const release = () => {
    keep();
    for (const buffer of doomed) buffer.destroy();
  };
  return { launches, copies, release, result };
}
