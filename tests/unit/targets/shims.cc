/*! Functions for test_shims.py: the headers of targets/native/shims at work. */
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "src/support/base64.h"
#include "src/support/bytes_io.h"

namespace ffi = tvm::ffi;
using namespace tvm::support;

ffi::Bytes Encode(ffi::Bytes data) {
  std::string text;
  BytesOutStream memory(&text);
  Base64OutStream encoder(&memory);
  const size_t half = data.size() / 2;
  encoder.Write(data.data(), half);
  encoder.Write(data.data() + half, data.size() - half);
  encoder.Finish();
  return ffi::Bytes(text);
}

ffi::Bytes Decode(ffi::Bytes text, int64_t size) {
  BytesInStream memory(text);
  Base64InStream decoder(&memory);
  decoder.InitPosition();
  std::string data(static_cast<size_t>(size), '\0');
  const size_t half = data.size() / 2;
  size_t count = decoder.Read(data.data(), half);
  count += decoder.Read(data.data() + half, data.size() - half);
  data.resize(count);
  return ffi::Bytes(data);
}

/*! Everything that TVM's module files hold, in one stream. */
ffi::Bytes Serialize() {
  std::string bytes;
  BytesOutStream stream(&bytes);
  stream.Write(static_cast<uint16_t>(0x0102));
  stream.Write(DLDataType{kDLFloat, 16, 1});
  stream.Write(DLDevice{kDLWebGPU, 3});
  stream.Write(std::string("text"));
  stream.Write(std::vector<int64_t>{-1, 2});
  stream.Write(ffi::Array<ffi::String>{"a", "bc"});
  stream.Write(ffi::Map<ffi::String, ffi::String>{{"key", "value"}});
  return ffi::Bytes(bytes);
}

/*! Whether reading gives back what Serialize wrote, and whether it ends there. */
bool Deserialize(ffi::Bytes bytes) {
  BytesInStream stream(bytes);
  uint16_t number;
  DLDataType dtype;
  DLDevice device;
  std::string text;
  std::vector<int64_t> vector;
  ffi::Array<ffi::String> array;
  std::unordered_map<std::string, std::string> map;
  const bool complete = stream.Read(&number) && stream.Read(&dtype) && stream.Read(&device) &&
                        stream.Read(&text) && stream.Read(&vector) && stream.Read(&array) &&
                        stream.Read(&map);
  char more;
  return complete && stream.Read(&more, 1) == 0 && number == 0x0102 && dtype.code == kDLFloat &&
         dtype.bits == 16 && device.device_type == kDLWebGPU && device.device_id == 3 &&
         text == "text" && vector == std::vector<int64_t>{-1, 2} && array.size() == 2 &&
         array[1] == "bc" && map.size() == 1 && map["key"] == "value";
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(encode, Encode)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(decode, Decode)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(serialize, Serialize)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(deserialize, Deserialize)
