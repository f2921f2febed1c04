// A device's own methods, as they were before the module put its own in front.

export interface Native {
  createBuffer(descriptor: GPUBufferDescriptor): GPUBuffer;
  createBindGroup(descriptor: GPUBindGroupDescriptor): GPUBindGroup;
  createBindGroupLayout(descriptor: GPUBindGroupLayoutDescriptor): GPUBindGroupLayout;
  createShaderModule(descriptor: GPUShaderModuleDescriptor): GPUShaderModule;
  createComputePipelineAsync(descriptor: GPUComputePipelineDescriptor): Promise<GPUComputePipeline>;
  createQuerySet(descriptor: GPUQuerySetDescriptor): GPUQuerySet;
  createCommandEncoder(descriptor?: GPUCommandEncoderDescriptor): GPUCommandEncoder;
  pushErrorScope(filter: GPUErrorFilter): void;
  popErrorScope(): Promise<GPUError | null>;
  submit(buffers: Iterable<GPUCommandBuffer>): void;
  writeBuffer: GPUQueue["writeBuffer"];
  onSubmittedWorkDone(): Promise<undefined>;
}

export function nativeOf(device: GPUDevice): Native {
  const { queue } = device;
  return {
    createBuffer: device.createBuffer.bind(device),
    createBindGroup: device.createBindGroup.bind(device),
    createBindGroupLayout: device.createBindGroupLayout.bind(device),
    createShaderModule: device.createShaderModule.bind(device),
    createComputePipelineAsync: device.createComputePipelineAsync.bind(device),
    createQuerySet: device.createQuerySet.bind(device),
    createCommandEncoder: device.createCommandEncoder.bind(device),
    pushErrorScope: device.pushErrorScope.bind(device),
    popErrorScope: device.popErrorScope.bind(device),
    submit: queue.submit.bind(queue),
    writeBuffer: queue.writeBuffer.bind(queue) as GPUQueue["writeBuffer"],
    onSubmittedWorkDone: queue.onSubmittedWorkDone.bind(queue) as Native["onSubmittedWorkDone"],
  };
}
