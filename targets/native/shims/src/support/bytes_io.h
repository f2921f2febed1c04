/*! Byte streams over memory. Missing in TVM's wheel; written anew from the sources that use it. */
#pragma once

#include <tvm/ffi/string.h>
#include <tvm/support/io.h>
#include <tvm/support/serializer.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace tvm {
namespace support {

/*! Reads from bytes that outlive it. */
class BytesInStream final : public Stream {
 public:
  using Stream::Read;
  using Stream::Write;

  explicit BytesInStream(const std::string& bytes) : next_(bytes.data()), left_(bytes.size()) {}
  explicit BytesInStream(const ffi::Bytes& bytes) : next_(bytes.data()), left_(bytes.size()) {}

  size_t Read(void* data, size_t size) final {
    const size_t count = std::min(size, left_);
    if (count != 0) std::memcpy(data, next_, count);
    next_ += count;
    left_ -= count;
    return count;
  }
  size_t Write(const void*, size_t) final { return 0; }

 private:
  const char* next_;
  size_t left_;
};

/*! Appends to a string that outlives it. */
class BytesOutStream final : public Stream {
 public:
  using Stream::Read;
  using Stream::Write;

  explicit BytesOutStream(std::string* bytes) : bytes_(bytes) {}

  size_t Read(void*, size_t) final { return 0; }
  size_t Write(const void* data, size_t size) final {
    bytes_->append(static_cast<const char*>(data), size);
    return size;
  }

 private:
  std::string* bytes_;
};

}  // namespace support
}  // namespace tvm
