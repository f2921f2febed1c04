/*!
 * What a wasm library needs besides TVM's runtime and libc, so that its imports stay within what
 * the client's WASI layer offers: C++ exceptions (there are none: a throw ends the instance),
 * growth of the memory, and two calls that are linked in and never reached.
 */
#include <tvm/ffi/extra/module.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>

namespace tvm {
namespace runtime {

class RPCSession;

/*! Named by `wasm.LocalSession`, which only a remote debugger calls. */
ffi::Module CreateRPCSessionModule(std::shared_ptr<RPCSession>) {
  TVM_FFI_THROW(RuntimeError) << "this library has no RPC";
  TVM_FFI_UNREACHABLE();
}

}  // namespace runtime
}  // namespace tvm

extern "C" {

// --- Exceptions ---

void* __cxa_allocate_exception(size_t size) noexcept { return std::malloc(size); }

void __cxa_throw(void*, void*, void (*)(void*)) {
  // The message was printed where it was thrown (TVM_FFI_ALWAYS_LOG_BEFORE_THROW).
  std::fflush(stderr);
  std::abort();
}

/*! Thread-local objects live as long as the instance. */
int __cxa_thread_atexit(void (*)(void*), void*, void*) noexcept { return 0; }

// --- WASI ---
// malloc grows the memory by instruction, and the client's WASI layer keeps views of the old memory
// until it is told. So tell it before each call that lets it read or write memory. Defining
// `__imported_...` takes the place of the import that libc makes; the real one is imported under
// another name.

#define WASM_IMPORT(module, name) __attribute__((import_module(module), import_name(name)))

WASM_IMPORT("env", "emscripten_notify_memory_growth") void NotifyMemoryGrowth(int32_t memory_index);
WASM_IMPORT("wasi_snapshot_preview1", "fd_write")
int32_t WasiWrite(int32_t fd, int32_t parts, int32_t count, int32_t written);
WASM_IMPORT("wasi_snapshot_preview1", "clock_time_get")
int32_t WasiClock(int32_t clock, int64_t precision, int32_t time);

static void TellGrowth() {
  static size_t known_pages = 0;
  const size_t pages = __builtin_wasm_memory_size(0);
  if (pages == known_pages) return;
  known_pages = pages;
  NotifyMemoryGrowth(0);
}

int32_t __imported_wasi_snapshot_preview1_fd_write(int32_t fd, int32_t parts, int32_t count,
                                                   int32_t written) {
  TellGrowth();
  return WasiWrite(fd, parts, count, written);
}

int32_t __imported_wasi_snapshot_preview1_clock_time_get(int32_t clock, int64_t precision,
                                                         int32_t time) {
  TellGrowth();
  return WasiClock(clock, precision, time);
}

/*! Not offered by the client; libc asks whether stdout is a terminal. It is a character device
 * without rights. */
int32_t __imported_wasi_snapshot_preview1_fd_fdstat_get(int32_t, int32_t status) {
  constexpr uint8_t kCharacterDevice = 2;
  uint8_t* bytes = reinterpret_cast<uint8_t*>(static_cast<uintptr_t>(status));
  for (int i = 0; i < 24; ++i) bytes[i] = 0;
  bytes[0] = kCharacterDevice;
  return 0;
}

}  // extern "C"
