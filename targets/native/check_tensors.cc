/*!
 * Refuses tensors that are not what a compiled function was made for, before a kernel reads them.
 *
 * The functions that launch kernels check nothing themselves (pass `check_tensors`): a call of this
 * stands where a tensor comes into the model, as an argument, as one of the weights, or from the KV
 * state.
 */
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>

#include <sstream>
#include <string>

#include "library.h"

namespace gemma4_compile {

namespace {

constexpr int64_t kAny = -1;  // an extent that may be anything

/*! What a tensor has to be: three numbers and its extents. */
struct Expected {
  int64_t type;  // as `Type` gives it
  int64_t ndim;
  const int64_t* extents;
};

const char* DeviceName(int64_t type) {
  switch (type) {
    case kDLCPU:
      return "cpu";
    case kDLCUDA:
      return "cuda";
    case kDLMetal:
      return "metal";
    case kDLWebGPU:
      return "webgpu";
    default:
      return "another device";
  }
}

const char* TypeName(int64_t code) {
  switch (code) {
    case kDLInt:
      return "int";
    case kDLUInt:
      return "uint";
    case kDLFloat:
      return "float";
    case kDLBfloat:
      return "bfloat";
    default:
      return "other type of ";
  }
}

std::string Described(int64_t type, const int64_t* extents, int64_t ndim, int64_t device) {
  std::ostringstream text;
  text << TypeName(type >> 8) << (type & 255) << " [";
  for (int64_t axis = 0; axis < ndim; ++axis) {
    text << (axis ? ", " : "");
    if (extents[axis] == kAny) {
      text << "any";
    } else {
      text << extents[axis];
    }
  }
  text << "] on " << DeviceName(device);
  return text.str();
}

/*! A type of elements as one number. */
int64_t Type(const DLTensor& tensor) { return tensor.dtype.code * 256 + tensor.dtype.bits; }

bool HasExtents(const DLTensor& tensor, const Expected& expected) {
  if (tensor.ndim != expected.ndim) return false;
  for (int64_t axis = 0; axis < expected.ndim; ++axis) {
    if (expected.extents[axis] != kAny && expected.extents[axis] != tensor.shape[axis])
      return false;
  }
  return true;
}

/*! Whether the elements lie one after the other, from the first byte of the memory on; where there
 * are none, they do. */
bool IsWhole(const DLTensor& tensor) {
  bool has_gaps = tensor.byte_offset != 0 || tensor.data == nullptr;
  int64_t elements = 1;
  for (int64_t axis = tensor.ndim - 1; axis >= 0; --axis) {
    const int64_t extent = tensor.shape[axis];
    has_gaps |= tensor.strides != nullptr && extent != 1 && tensor.strides[axis] != elements;
    elements *= extent;
  }
  return elements == 0 || !has_gaps;
}

void CheckOne(const ffi::String& what, int64_t item, const ffi::AnyView& value, int64_t device,
              const Expected& expected) {
  const auto found = value.try_cast<DLTensor*>();
  const DLTensor* tensor = found.has_value() ? *found : nullptr;
  const bool is_plain =
      tensor != nullptr && tensor->dtype.lanes == 1 && tensor->device.device_id == 0;
  if (is_plain && Type(*tensor) == expected.type && tensor->device.device_type == device &&
      HasExtents(*tensor, expected) && IsWhole(*tensor)) {
    return;
  }
  std::ostringstream text;
  text << std::string(what);
  if (item >= 0) text << "[" << item << "]";
  text << ": expected " << Described(expected.type, expected.extents, expected.ndim, device);
  GEMMA4_REQUIRE(tensor != nullptr, TypeError) << text.str() << ", found no tensor";
  text << ", found "
       << Described(Type(*tensor), tensor->shape, tensor->ndim, tensor->device.device_type);
  // An int: the list of libc++'s symbols (`macos/libc++.1.tbd`) has no `<<` of a 16-bit number.
  const int lanes = tensor->dtype.lanes;
  if (lanes != 1) text << ", " << lanes << " to an element";
  if (tensor->device.device_id != 0) text << " number " << tensor->device.device_id;
  if (!IsWhole(*tensor)) text << ", not from the begin of its memory on and without gaps";
  GEMMA4_REQUIRE(false, ValueError) << text.str();
}

/*!
 * Check a tensor, or tensors of a list.
 * \param what names the value in errors
 * \param device of the tensors, by DLPack's number; they are on the first one of its type
 * \param value a tensor, or a list of tensors
 * \param layout for each tensor: its place in the list, or -1 for the value itself, its type (the
 * code * 256 + the bits), its number of extents and the extents, of which -1 may be anything
 */
void CheckTensors(ffi::String what, int64_t device, ffi::AnyView value, ffi::Shape layout) {
  const auto* list = value.as<ffi::ArrayObj>();
  const int64_t* next = layout.data();
  const int64_t* const end = next + layout.size();
  while (next < end) {
    const int64_t item = next[0];
    const Expected expected{next[1], next[2], next + 3};
    next = expected.extents + expected.ndim;
    if (item < 0) {
      CheckOne(what, item, value, device, expected);
      continue;
    }
    GEMMA4_REQUIRE(list != nullptr, TypeError)
        << std::string(what) << ": expected a list of tensors";
    const int64_t size = static_cast<int64_t>(list->size());
    GEMMA4_REQUIRE(item < size, ValueError)
        << std::string(what) << ": expected more than " << item << " tensors, found " << size;
    CheckOne(what, item, (*list)[item], device, expected);
  }
}

}  // namespace

GEMMA4_FUNCTION(gemma4_check_tensors, CheckTensors)

}  // namespace gemma4_compile
