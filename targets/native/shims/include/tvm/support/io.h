/*!
 * Abstract byte stream. TVM's wheel ships sources that use this header, but not the header; written
 * anew from their use.
 */
#pragma once

#include <cstddef>

namespace tvm {
namespace support {

/*! How a value of type T is written to and read from a stream; see serializer.h. */
template <typename T, typename = void>
struct Serializer;

class Stream {
 public:
  virtual ~Stream() = default;

  /*! Read up to `size` bytes and return how many there were. */
  virtual size_t Read(void* data, size_t size) = 0;
  /*! Write `size` bytes and return how many were taken. */
  virtual size_t Write(const void* data, size_t size) = 0;

  template <typename T>
  void Write(const T& value) {
    Serializer<T>::Write(this, value);
  }
  template <typename T>
  bool Read(T* value) {
    return Serializer<T>::Read(this, value);
  }
  template <typename T>
  void WriteArray(const T* values, size_t count) {
    for (size_t i = 0; i < count; ++i) Serializer<T>::Write(this, values[i]);
  }
  template <typename T>
  bool ReadArray(T* values, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      if (!Serializer<T>::Read(this, &values[i])) return false;
    }
    return true;
  }
};

}  // namespace support
}  // namespace tvm
