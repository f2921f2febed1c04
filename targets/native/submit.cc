/*!
 * Sends what was launched to the GPU, for clients that gather launches until somebody reads a result.
 */
#include <tvm/ffi/container/tensor.h>

#include "library.h"

namespace gemma4_compile {

namespace {

/*!
 * Copy no bytes into a tensor. A client has to submit what it gathered before it writes, since a
 * write takes effect before commands that are submitted later.
 */
void Submit(ffi::Tensor tensor) {
  int64_t extent = 0;
  char nothing = 0;
  DLTensor source{&nothing, DLDevice{kDLCPU, 0}, 1, tensor.dtype(), &extent, nullptr, 0};
  DLTensor target = *tensor.GetDLTensorPtr();
  target.ndim = 1;
  target.shape = &extent;
  target.strides = nullptr;
  CallRuntime("runtime.TVMTensorCopyFromTo", &source, &target);
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() { ffi::reflection::GlobalDef().def("gemma4_submit", Submit); }

}  // namespace gemma4_compile
