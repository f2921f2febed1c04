/*!
 * Finds the functions of macOS that objc.h names.
 */
#include "objc.h"

#include <dlfcn.h>

namespace gemma4_metal {

System objc;

namespace {

/*! A function of a library by its path, or else one that the process has. */
void* Find(const char* library, const char* name) {
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  void* found = handle == nullptr ? nullptr : dlsym(handle, name);
  return found != nullptr ? found : dlsym(RTLD_DEFAULT, name);
}

template <typename Function>
bool Set(Function* function, const char* library, const char* name) {
  *function = reinterpret_cast<Function>(Find(library, name));
  return *function != nullptr;
}

constexpr const char* kObjc = "/usr/lib/libobjc.A.dylib";
constexpr const char* kMetal = "/System/Library/Frameworks/Metal.framework/Metal";

}  // namespace

const char* FindSystem() {
  if (objc.create_device != nullptr) return nullptr;
  System found;
  if (!Set(&found.get_class, kObjc, "objc_getClass")) return "objc_getClass";
  if (!Set(&found.register_name, kObjc, "sel_registerName")) return "sel_registerName";
  if (!Set(&found.send, kObjc, "objc_msgSend")) return "objc_msgSend";
  if (!Set(&found.push_pool, kObjc, "objc_autoreleasePoolPush")) return "objc_autoreleasePoolPush";
  if (!Set(&found.pop_pool, kObjc, "objc_autoreleasePoolPop")) return "objc_autoreleasePoolPop";
  if (!Set(&found.create_device, kMetal, "MTLCreateSystemDefaultDevice"))
    return "MTLCreateSystemDefaultDevice";
#define GEMMA4_SELECTOR(name, text) found.name = found.register_name(text);
  GEMMA4_SELECTORS(GEMMA4_SELECTOR)
#undef GEMMA4_SELECTOR
  objc = found;
  return nullptr;
}

int MacosVersion() {
  using Ask = int (*)(const char*, void*, size_t*, void*, size_t);
  const auto ask = reinterpret_cast<Ask>(dlsym(RTLD_DEFAULT, "sysctlbyname"));
  char text[32] = {};
  size_t bytes = sizeof(text) - 1;
  if (ask == nullptr || ask("kern.osproductversion", text, &bytes, nullptr, 0) != 0) return 0;
  int version = 0;
  for (const char* at = text; *at >= '0' && *at <= '9'; ++at) version = 10 * version + *at - '0';
  // Programs that were built for an earlier system, as Python may be, are told 16 for 26.
  return version == 16 ? 26 : version;
}

bool HasTensors(Id device) {
  constexpr long kApple10 = 1010, kMetal4 = 5002;  // MTLGPUFamily
  return MacosVersion() >= 26 && Send<bool>(device, objc.supports_family, kMetal4) &&
         Send<bool>(device, objc.supports_family, kApple10);
}

}  // namespace gemma4_metal
