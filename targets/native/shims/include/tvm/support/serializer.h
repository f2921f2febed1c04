/*!
 * The binary form of values in TVM's own files: little-endian words, and containers as a 64-bit
 * count followed by their elements. Missing in TVM's wheel; written anew from the sources that use
 * it.
 */
#pragma once

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/string.h>
#include <tvm/support/io.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tvm {
namespace support {

// --- Numbers: their bytes ---

template <typename T>
struct Serializer<T, std::enable_if_t<std::is_arithmetic_v<T> || std::is_enum_v<T>>> {
  static constexpr bool enabled = true;

  static void Write(Stream* stream, const T& value) { stream->Write(&value, sizeof(T)); }
  static bool Read(Stream* stream, T* value) { return stream->Read(value, sizeof(T)) == sizeof(T); }
};

// --- DLPack's structures: field by field ---

template <>
struct Serializer<DLDataType> {
  static constexpr bool enabled = true;

  static void Write(Stream* stream, const DLDataType& value) {
    stream->Write(value.code);
    stream->Write(value.bits);
    stream->Write(value.lanes);
  }
  static bool Read(Stream* stream, DLDataType* value) {
    return stream->Read(&value->code) && stream->Read(&value->bits) && stream->Read(&value->lanes);
  }
};

template <>
struct Serializer<DLDevice> {
  static constexpr bool enabled = true;

  static void Write(Stream* stream, const DLDevice& value) {
    stream->Write(static_cast<int32_t>(value.device_type));
    stream->Write(value.device_id);
  }
  static bool Read(Stream* stream, DLDevice* value) {
    int32_t device_type;
    if (!stream->Read(&device_type)) return false;
    value->device_type = static_cast<DLDeviceType>(device_type);
    return stream->Read(&value->device_id);
  }
};

// --- Strings: length and bytes ---

template <>
struct Serializer<std::string> {
  static constexpr bool enabled = true;

  static void Write(Stream* stream, const std::string& value) {
    stream->Write(static_cast<uint64_t>(value.size()));
    stream->Write(value.data(), value.size());
  }
  static bool Read(Stream* stream, std::string* value) {
    uint64_t size;
    if (!stream->Read(&size)) return false;
    value->resize(static_cast<size_t>(size));
    return stream->Read(value->data(), value->size()) == value->size();
  }
};

template <>
struct Serializer<ffi::String> {
  static constexpr bool enabled = true;

  static void Write(Stream* stream, const ffi::String& value) { stream->Write(std::string(value)); }
  static bool Read(Stream* stream, ffi::String* value) {
    std::string text;
    if (!stream->Read(&text)) return false;
    *value = ffi::String(std::move(text));
    return true;
  }
};

// --- Containers: count and elements ---

template <typename T>
struct Serializer<std::vector<T>> {
  static constexpr bool enabled = true;

  static void Write(Stream* stream, const std::vector<T>& values) {
    stream->Write(static_cast<uint64_t>(values.size()));
    stream->WriteArray(values.data(), values.size());
  }
  static bool Read(Stream* stream, std::vector<T>* values) {
    uint64_t size;
    if (!stream->Read(&size)) return false;
    values->resize(static_cast<size_t>(size));
    return stream->ReadArray(values->data(), values->size());
  }
};

template <typename T>
struct Serializer<ffi::Array<T>> {
  static constexpr bool enabled = true;

  static void Write(Stream* stream, const ffi::Array<T>& values) {
    stream->Write(static_cast<uint64_t>(values.size()));
    for (const T& value : values) stream->Write(value);
  }
  static bool Read(Stream* stream, ffi::Array<T>* values) {
    uint64_t size;
    if (!stream->Read(&size)) return false;
    ffi::Array<T> result;
    for (uint64_t i = 0; i < size; ++i) {
      T value{};
      if (!stream->Read(&value)) return false;
      result.push_back(value);
    }
    *values = std::move(result);
    return true;
  }
};

/*! Read a map by its interface's own way to insert a pair. */
template <typename K, typename V, typename Insert>
bool ReadPairs(Stream* stream, Insert insert) {
  uint64_t size;
  if (!stream->Read(&size)) return false;
  for (uint64_t i = 0; i < size; ++i) {
    K key;
    if (!stream->Read(&key)) return false;
    V value;
    if (!stream->Read(&value)) return false;
    insert(std::move(key), std::move(value));
  }
  return true;
}

template <typename K, typename V>
struct Serializer<std::unordered_map<K, V>> {
  static constexpr bool enabled = true;

  static void Write(Stream* stream, const std::unordered_map<K, V>& pairs) {
    stream->Write(static_cast<uint64_t>(pairs.size()));
    for (const auto& [key, value] : pairs) {
      stream->Write(key);
      stream->Write(value);
    }
  }
  static bool Read(Stream* stream, std::unordered_map<K, V>* pairs) {
    pairs->clear();
    return ReadPairs<K, V>(
        stream, [pairs](K key, V value) { (*pairs)[std::move(key)] = std::move(value); });
  }
};

template <typename K, typename V>
struct Serializer<ffi::Map<K, V>> {
  static constexpr bool enabled = true;

  static void Write(Stream* stream, const ffi::Map<K, V>& pairs) {
    stream->Write(static_cast<uint64_t>(pairs.size()));
    for (const auto& [key, value] : pairs) {
      stream->Write(key);
      stream->Write(value);
    }
  }
  static bool Read(Stream* stream, ffi::Map<K, V>* pairs) {
    ffi::Map<K, V> result;
    const bool complete = ReadPairs<K, V>(
        stream, [&result](K key, V value) { result.Set(std::move(key), std::move(value)); });
    *pairs = std::move(result);
    return complete;
  }
};

}  // namespace support
}  // namespace tvm
