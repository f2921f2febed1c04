/*! Base64 on byte streams, for tensors inside JSON. Missing in TVM's wheel; written anew from RFC
 * 4648. */
#pragma once

#include <tvm/support/io.h>

#include <cstdint>

namespace tvm {
namespace support {

/*! Encodes what is written and passes it on; call Finish at the end. */
class Base64OutStream final : public Stream {
 public:
  using Stream::Read;
  using Stream::Write;

  explicit Base64OutStream(Stream* sink) : sink_(sink) {}

  size_t Read(void*, size_t) final { return 0; }
  size_t Write(const void* data, size_t size) final {
    const uint8_t* bytes = static_cast<const uint8_t*>(data);
    for (size_t i = 0; i < size; ++i) {
      group_ = group_ << 8 | bytes[i];
      if (++count_ == 3) Flush(4, 0);
    }
    return size;
  }
  void Finish() {
    if (count_ == 0) return;
    const int missing = 3 - count_;
    group_ <<= 8 * missing;
    Flush(4 - missing, missing);
  }

 private:
  void Flush(int digits, int padding) {
    static const char kDigits[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char text[4] = {'=', '=', '=', '='};
    for (int i = 0; i < digits; ++i) text[i] = kDigits[group_ >> (18 - 6 * i) & 63];
    sink_->Write(text, static_cast<size_t>(digits + padding));
    group_ = 0;
    count_ = 0;
  }

  Stream* sink_;
  uint32_t group_ = 0;
  int count_ = 0;
};

/*! Decodes what is read from another stream; stops at the first character that is no digit. */
class Base64InStream final : public Stream {
 public:
  using Stream::Read;
  using Stream::Write;

  explicit Base64InStream(Stream* source) : source_(source) {}

  void InitPosition() {}
  size_t Write(const void*, size_t) final { return 0; }
  size_t Read(void* data, size_t size) final {
    uint8_t* bytes = static_cast<uint8_t*>(data);
    size_t done = 0;
    for (; done < size; ++done) {
      while (bits_ < 8) {
        char digit;
        if (source_->Read(&digit, 1) != 1) return done;
        const int value = Value(digit);
        if (value < 0) return done;
        pool_ = (pool_ << 6 | static_cast<uint32_t>(value)) & 0x3FFF;
        bits_ += 6;
      }
      bits_ -= 8;
      bytes[done] = static_cast<uint8_t>(pool_ >> bits_);
    }
    return done;
  }

 private:
  static int Value(char digit) {
    if ('A' <= digit && digit <= 'Z') return digit - 'A';
    if ('a' <= digit && digit <= 'z') return digit - 'a' + 26;
    if ('0' <= digit && digit <= '9') return digit - '0' + 52;
    return digit == '+' ? 62 : digit == '/' ? 63 : -1;
  }

  Stream* source_;
  uint32_t pool_ = 0;
  int bits_ = 0;
};

}  // namespace support
}  // namespace tvm
