/*!
 * What the library tells a browser module that drives it from outside (`web/`): plain C functions of
 * the instance, so that the module need not guess from the client's calls. A throw would end the
 * instance: for every live object, and for none, these functions return a number.
 */
#include <tvm/ffi/any.h>
#include <tvm/ffi/c_api.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/runtime/base.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "kv_state.h"

namespace gemma4_compile {

namespace {

constexpr int kInterfaceVersion = 1;

std::string Field(const char* name, int value) {
  return "\"" + std::string(name) + "\": " + std::to_string(value);
}

std::string DescribeInterface() {
  const std::string ffi_version = std::to_string(TVM_FFI_VERSION_MAJOR) + "." +
                                  std::to_string(TVM_FFI_VERSION_MINOR) + "." +
                                  std::to_string(TVM_FFI_VERSION_PATCH);
  return "{" + Field("abi", kInterfaceVersion) + ", \"tvm\": \"" TVM_VERSION "\", \"tvm_ffi\": \"" +
         ffi_version +
         "\", \"functions\": {\"prefill\": \"prefill_tokens\", \"decode\": \"decode_tokens\", "
         "\"softmax\": \"softmax_with_temperature\", \"argsort\": \"argsort_probs\", "
         "\"sample\": \"sample_with_top_p\", \"metadata\": \"_metadata\"}, \"types\": {" +
         Field("none", kTVMFFINone) + ", " + Field("int", kTVMFFIInt) + ", " +
         Field("float", kTVMFFIFloat) + ", " + Field("raw_string", kTVMFFIRawStr) + ", " +
         Field("string", kTVMFFIStr) + ", " + Field("function", kTVMFFIFunction) + ", " +
         Field("tensor", kTVMFFITensor) + ", " + Field("object_from", kTVMFFIStaticObjectBegin) +
         "}, " + Field("any_bytes", sizeof(TVMFFIAny)) + "}";
}

const ffi::Object* AsObject(TVMFFIObjectHandle handle) {
  return static_cast<const ffi::Object*>(handle);
}

/*! The state of a handle, or null; also for one with room for several sequences, whose steps do
 * not all read the same buffers. */
Gemma4KVStateObj* AsState(TVMFFIObjectHandle handle) {
  if (handle == nullptr) return nullptr;
  if (AsObject(handle)->type_index() != Gemma4KVStateObj::RuntimeTypeIndex()) return nullptr;
  auto* state = static_cast<Gemma4KVStateObj*>(static_cast<ffi::Object*>(handle));
  return state->max_sequences() == 1 ? state : nullptr;
}

/*! The tensor that an object is or begins with, or null. */
const ffi::TensorObj* AsTensor(TVMFFIObjectHandle handle) {
  if (handle == nullptr) return nullptr;
  const ffi::Object* object = AsObject(handle);
  if (object->type_index() == kTVMFFIArray) {
    const auto* array = static_cast<const ffi::ArrayObj*>(object);
    if (array->size() == 0) return nullptr;
    const ffi::Any& first = *array->begin();
    return first.type_index() == kTVMFFITensor ? first.as<ffi::TensorObj>() : nullptr;
  }
  if (object->type_index() != kTVMFFITensor) return nullptr;
  return static_cast<const ffi::TensorObj*>(object);
}

/*! A WebGPU tensor's data is the number of its buffer in the client's table; else -1. */
int32_t BufferNumber(const DLTensor* tensor) {
  if (tensor->device.device_type != kDLWebGPU || tensor->byte_offset != 0) return -1;
  const auto number = reinterpret_cast<uintptr_t>(tensor->data);
  return number <= static_cast<uintptr_t>(std::numeric_limits<int32_t>::max())
             ? static_cast<int32_t>(number)
             : -1;
}

}  // namespace

}  // namespace gemma4_compile

#define GEMMA4_DRIVER_API extern "C" __attribute__((visibility("default")))

using gemma4_compile::AsState;
using gemma4_compile::AsTensor;
using gemma4_compile::BufferNumber;
using gemma4_compile::Gemma4KVStateObj;

/*! The interface's version, names and numbers as JSON. The text lives as long as the instance. */
GEMMA4_DRIVER_API const char* gemma4_driver_interface() {
  static const std::string& text = *new std::string(gemma4_compile::DescribeInterface());
  return text.c_str();
}

// --- Objects ---

/*! The tensor itself, or the first element of an array that begins with a tensor (borrowed), or 0.
 */
GEMMA4_DRIVER_API TVMFFIObjectHandle gemma4_driver_tensor(TVMFFIObjectHandle object) {
  return const_cast<tvm::ffi::TensorObj*>(AsTensor(object));
}

/*! The number of the buffer of `gemma4_driver_tensor` in the client's table; -1 if there is none,
 * if it is not on WebGPU or does not begin at its buffer's begin. */
GEMMA4_DRIVER_API int32_t gemma4_driver_buffer(TVMFFIObjectHandle object) {
  const tvm::ffi::TensorObj* tensor = AsTensor(object);
  return tensor == nullptr ? -1 : BufferNumber(tensor);
}

/*! Strong references to an object. */
GEMMA4_DRIVER_API int32_t gemma4_driver_use_count(TVMFFIObjectHandle object) {
  if (object == nullptr) return -1;
  return static_cast<int32_t>(gemma4_compile::AsObject(object)->use_count());
}

// --- The KV state of one sequence; for any other object -1 ---

/*!
 * Buffer numbers: positions, rotary, then key and value of every layer.
 * \return how many there are; at most `capacity` of them are written to `out`
 */
GEMMA4_DRIVER_API int32_t gemma4_driver_state(TVMFFIObjectHandle state, int32_t* out,
                                              int32_t capacity) {
  const Gemma4KVStateObj* self = AsState(state);
  if (self == nullptr) return -1;
  int32_t count = 0;
  const auto append = [&](const tvm::ffi::Tensor& tensor) {
    if (out != nullptr && count < capacity) out[count] = BufferNumber(tensor.GetDLTensorPtr());
    ++count;
  };
  append(self->positions());
  append(self->rotary());
  for (const gemma4_compile::LayerCache& layer : self->layers()) {
    append(layer.key);
    append(layer.value);
  }
  return count;
}

/*! Tokens whose forward has ended. */
GEMMA4_DRIVER_API int32_t gemma4_driver_length(TVMFFIObjectHandle state) {
  const Gemma4KVStateObj* self = AsState(state);
  return self == nullptr ? -1 : static_cast<int32_t>(self->current().length);
}

/*! A counter of the calls that change the sequence, but for the ends of forwards. 31 bits of it, so
 * that none is taken for -1. */
GEMMA4_DRIVER_API int32_t gemma4_driver_version(TVMFFIObjectHandle state) {
  const Gemma4KVStateObj* self = AsState(state);
  return self == nullptr ? -1 : static_cast<int32_t>(self->version() & 0x7fffffffu);
}

/*! How many tokens from position `length` on may be written, a pending one among them, so that the
 * step at `length` could still be run again. */
GEMMA4_DRIVER_API int32_t gemma4_driver_room(TVMFFIObjectHandle state) {
  const Gemma4KVStateObj* self = AsState(state);
  return self == nullptr ? -1 : static_cast<int32_t>(self->Room());
}

/*! Bytes of one position's row of rotary values. */
GEMMA4_DRIVER_API int32_t gemma4_driver_step_bytes(TVMFFIObjectHandle state) {
  const Gemma4KVStateObj* self = AsState(state);
  if (self == nullptr) return -1;
  return static_cast<int32_t>(self->rotary_pairs() * 2 * static_cast<int64_t>(sizeof(float)));
}

/*!
 * Write what begin_forward uploads for one token at `position`.
 * \param positions 4 numbers
 * \param rotary `gemma4_driver_step_bytes` bytes
 * \return 0, or -1 for a position outside the context
 */
GEMMA4_DRIVER_API int32_t gemma4_driver_step(TVMFFIObjectHandle state, int32_t position,
                                             int32_t* positions, float* rotary) {
  const Gemma4KVStateObj* self = AsState(state);
  if (self == nullptr || positions == nullptr || rotary == nullptr) return -1;
  if (position < 0 || position >= self->capacity()) return -1;
  const std::array<int32_t, 4> values = Gemma4KVStateObj::PositionValues(position, 1);
  std::memcpy(positions, values.data(), sizeof(values));
  self->RotaryValues(position, rotary);
  return 0;
}

/*!
 * Note that the rows of all positions below `length` were written on the device, ahead of
 * begin_forward.
 * \return 0, or -1 without a sequence or for a length outside the context
 */
GEMMA4_DRIVER_API int32_t gemma4_driver_wrote(TVMFFIObjectHandle state, int32_t length) {
  Gemma4KVStateObj* self = AsState(state);
  if (self == nullptr || !self->current().id) return -1;
  if (length < 0 || length > self->capacity()) return -1;
  self->NoteWritten(length);
  return 0;
}
