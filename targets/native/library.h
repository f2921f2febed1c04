/*!
 * What every C++ file of a model library uses: errors, calls of the runtime, exported functions.
 *
 * Nothing of TVM's C++ runtime is called that could throw: on native targets these files bring a
 * C++ library of their own, and an exception must not cross from one into the other. Tensors are
 * made and filled through global functions, whose errors arrive as return codes (CallRuntime).
 */
#ifndef GEMMA4_COMPILE_LIBRARY_H_
#define GEMMA4_COMPILE_LIBRARY_H_

#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>

#include <cstdint>

namespace gemma4_compile {

namespace ffi = tvm::ffi;

/*! Throw an error of the given kind, whose message is for users and so without the condition's
 * text. */
#define GEMMA4_REQUIRE(condition, kind) \
  if (condition) {                      \
  } else                                \
    TVM_FFI_THROW(kind)

// In a wasm library the whole runtime is one image, and functions are found by their global names.
// A native library exports its own, so that two of them in one process keep apart.
#ifdef __wasm__
#define GEMMA4_FUNCTION(name, function) \
  TVM_FFI_STATIC_INIT_BLOCK() { ffi::reflection::GlobalDef().def(#name, function); }
#else
#define GEMMA4_FUNCTION(name, function) TVM_FFI_DLL_EXPORT_TYPED_FUNC(name, function)
#endif

/*!
 * Call a global function of the runtime through its C interface, which turns an exception into a
 * return code. The plain call operator would jump into the runtime's C++ and let its exceptions
 * through.
 */
template <typename... Args>
ffi::Any CallRuntime(const char* name, const Args&... args) {
  const ffi::Function function = ffi::Function::GetGlobalRequired(name);
  ffi::AnyView packed[] = {ffi::AnyView(args)...};
  ffi::Any result;
  TVM_FFI_CHECK_SAFE_CALL(TVMFFIFunctionCall(
      const_cast<ffi::FunctionObj*>(function.get()), reinterpret_cast<TVMFFIAny*>(packed),
      static_cast<int32_t>(sizeof...(Args)), reinterpret_cast<TVMFFIAny*>(&result)));
  return result;
}

}  // namespace gemma4_compile

#endif  // GEMMA4_COMPILE_LIBRARY_H_
