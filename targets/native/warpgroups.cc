/*!
 * Whether the GPU has what kernels need that multiply by warpgroups: CUDA's compute capability 9.0
 * alone does (targets/kernels/tiles/warpgroups.py). Host code asks before it launches one. With
 * GEMMA4_WARPGROUPS=0 in the environment it has other kernels there, too.
 */
#include <cstdlib>
#include <string>

#include "library.h"

namespace {

bool HasWarpgroups() {
  constexpr int kCuda = 2, kFirst = 0, kExists = 0, kComputeVersion = 4;
  using gemma4_compile::CallRuntime;
  const char* chosen = std::getenv("GEMMA4_WARPGROUPS");
  if (chosen != nullptr && std::string(chosen) == "0") return false;
  constexpr const char* kAttribute = "runtime.GetDeviceAttr";
  if (!CallRuntime(kAttribute, kCuda, kFirst, kExists).cast<bool>()) return false;
  const auto version = CallRuntime(kAttribute, kCuda, kFirst, kComputeVersion);
  return version.cast<std::string>() == "9.0";
}

}  // namespace

extern "C" int gemma4_has_warpgroups() {
  static const bool known = HasWarpgroups();
  return known;
}
