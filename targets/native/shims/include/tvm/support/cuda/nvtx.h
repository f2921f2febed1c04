/*! Profiler ranges, which mean nothing where our libraries run. Missing in TVM's wheel. */
#pragma once

#include <string>

namespace tvm {
namespace support {

struct NVTXScopedRange {
  explicit NVTXScopedRange(const std::string&) {}
};

}  // namespace support
}  // namespace tvm
