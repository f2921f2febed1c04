/*!
 * A Metal device of TVM's runtime without a GPU: buffers in host memory behind opaque handles, and
 * modules of kernels that were compiled as C++ (threadgroup.h). It stands where
 * libtvm_runtime_metal.dylib stands on a Mac, and reads the same bytes of a model library.
 */
#include <dlfcn.h>
#include <sys/mman.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/runtime/device_api.h>

#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "src/runtime/metadata.h"
#include "src/runtime/pack_args.h"
#include "src/runtime/thread_storage_scope.h"
#include "src/support/bytes_io.h"
#include "threadgroup.h"

namespace tvm {
namespace runtime {
namespace {

constexpr size_t kPage = 4096;

/*! Device memory: it ends where a page without access begins, so that a kernel that reads behind it
 * dies. The handle is an address without access, too: the host must not look into device memory. */
struct Buffer {
  char* pages;
  size_t page_bytes;
  char* data;
  size_t bytes;
};

std::map<void*, Buffer>& buffers() {
  static auto* instance = new std::map<void*, Buffer>;
  return *instance;
}

bool& is_descending() {
  static bool value = false;
  return value;
}

/*! TVM's runtime for Metal fills its staging buffers again without a wait where there are more. */
constexpr int kStagingBuffers = 64;

/*! Uploads since the last wait. */
int& uploads() {
  static int count = 0;
  return count;
}

char* data_of(const void* handle) {
  auto found = buffers().find(const_cast<void*>(handle));
  TVM_FFI_ICHECK(found != buffers().end()) << "not the handle of a Metal buffer";
  return found->second.data;
}

class EmulatedMetal final : public DeviceAPI {
 public:
  void SetDevice(Device) final {}
  void GetAttr(Device, DeviceAttrKind kind, ffi::Any* value) final {
    if (kind == kExist) *value = 1;
    if (kind == kDeviceName) *value = ffi::String("emulated Metal device");
  }
  void* AllocDataSpace(Device, size_t nbytes, size_t, DLDataType) final {
    const size_t bytes = (nbytes + 15) / 16 * 16;
    const size_t used = (bytes + kPage - 1) / kPage * kPage;
    Buffer buffer{nullptr, used + 2 * kPage, nullptr, bytes};
    buffer.pages = static_cast<char*>(mmap(nullptr, buffer.page_bytes, PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    buffer.data = buffer.pages + kPage + used - bytes;
    std::memset(buffer.data, 0xff, bytes);  // NaN, until something is written
    void* handle = mmap(nullptr, kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(buffer.pages, kPage, PROT_NONE);
    mprotect(buffer.pages + kPage + used, kPage, PROT_NONE);
    buffers()[handle] = buffer;
    return handle;
  }
  void FreeDataSpace(Device, void* handle) final {
    const Buffer buffer = buffers().at(handle);
    munmap(buffer.pages, buffer.page_bytes);
    munmap(handle, kPage);
    buffers().erase(handle);
  }
  void StreamSync(Device, TVMStreamHandle) final { uploads() = 0; }
  void SetStream(Device, TVMStreamHandle) final {}
  void* AllocWorkspace(Device device, size_t bytes, DLDataType type) final {
    return AllocDataSpace(device, bytes, 16, type);
  }
  void FreeWorkspace(Device device, void* handle) final { FreeDataSpace(device, handle); }

 protected:
  void CopyDataFromTo(const void* from, size_t from_offset, void* to, size_t to_offset, size_t size,
                      Device from_device, Device to_device, DLDataType, TVMStreamHandle) final {
    const char* source =
        from_device.device_type == kDLMetal ? data_of(from) : static_cast<const char*>(from);
    char* target = to_device.device_type == kDLMetal ? data_of(to) : static_cast<char*>(to);
    if (from_device.device_type != kDLMetal) ++uploads();
    std::memcpy(target + to_offset, source + from_offset, size);
  }
};

using Emulate = const char* (*)(const emulator::Launch&);

/*! What a launch does. */
struct EmulatedKernel {
  std::string name, problem;
  Emulate emulate = nullptr;
  size_t buffer_count;
  LaunchParamConfig config;

  void operator()(ffi::PackedArgs args, ffi::Any*, const ArgUnion64* numbers) const {
    if (emulate == nullptr)
      TVM_FFI_THROW(RuntimeError) << "no kernel `" << name << "`: " << problem;
    if (uploads() > kStagingBuffers)
      TVM_FFI_THROW(RuntimeError) << "kernel `" << name << "`: " << uploads()
                                  << " uploads since the last wait, of which " << kStagingBuffers
                                  << " are kept apart";
    std::vector<void*> arguments(buffer_count);
    for (size_t i = 0; i < buffer_count; ++i) {
      arguments[i] = data_of(args[static_cast<int>(i)].cast<void*>());
    }
    const ThreadWorkLoad load = config.Extract(args);
    const auto size = [](size_t value) { return static_cast<uint32_t>(value); };
    const emulator::Launch launch{
        arguments.data(),
        numbers,
        {size(load.grid_dim(0)), size(load.grid_dim(1)), size(load.grid_dim(2))},
        {size(load.block_dim(0)), size(load.block_dim(1)), size(load.block_dim(2))},
        is_descending()};
    const char* problem = emulate(launch);
    if (problem != nullptr) TVM_FFI_THROW(RuntimeError) << "kernel `" << name << "`: " << problem;
  }
};

class EmulatedModule final : public ffi::ModuleObj {
 public:
  EmulatedModule(const ffi::Map<ffi::String, ffi::String>& sources,
                 ffi::Map<ffi::String, FunctionInfo> infos)
      : infos_(std::move(infos)) {
    // Two strings: a path, and what is wrong. The runtime has a C++ library of its own, so no
    // exception may cross from here into it, or back; a launch goes through C, and may fail.
    const auto compile = ffi::Function::GetGlobalRequired("gemma4_test.compile_metal");
    const auto result = compile(sources).cast<ffi::Array<ffi::String>>();
    problem_ = result[1];
    if (problem_.empty()) library_ = dlopen(result[0].c_str(), RTLD_NOW | RTLD_LOCAL);
    if (problem_.empty() && library_ == nullptr) problem_ = dlerror();
  }
  const char* kind() const final { return "metal"; }
  int GetPropertyMask() const final {
    return ffi::Module::kBinarySerializable | ffi::Module::kRunnable;
  }
  ffi::Optional<ffi::Function> GetFunction(const ffi::String& name) final {
    const auto info = infos_.Get(name);
    if (!info.has_value()) return std::nullopt;
    const auto& types = info.value()->arg_types;
    EmulatedKernel kernel;
    kernel.name = name;
    kernel.buffer_count = NumBufferArgs(types);
    kernel.config.Init(types.size(), info.value()->launch_param_tags);
    kernel.problem = problem_;
    const std::string symbol = "emulate_" + kernel.name;
    if (library_ != nullptr) {
      kernel.emulate = reinterpret_cast<Emulate>(dlsym(library_, symbol.c_str()));
    }
    return PackFuncNonBufferArg(kernel, types);
  }

 private:
  ffi::Map<ffi::String, FunctionInfo> infos_;
  std::string problem_;
  void* library_ = nullptr;
};

ffi::Module load(const ffi::Bytes& bytes) {
  support::BytesInStream stream(bytes);
  ffi::String format;
  ffi::Map<ffi::String, FunctionInfo> infos;
  ffi::Map<ffi::String, ffi::String> sources;
  TVM_FFI_ICHECK(stream.Read(&format) && stream.Read(&infos) && stream.Read(&sources));
  TVM_FFI_ICHECK(format == "metal") << "kernels in the format `" << format << "`";
  return ffi::Module(ffi::make_object<EmulatedModule>(sources, std::move(infos)));
}

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::GlobalDef()
      .def("ffi.Module.load_from_bytes.metal", load)
      .def("gemma4_test.set_descending", [](bool value) { is_descending() = value; })
      .def_packed("device_api.metal", [](ffi::PackedArgs, ffi::Any* result) {
        static auto* device = new EmulatedMetal;
        *result = static_cast<void*>(static_cast<DeviceAPI*>(device));
      });
}

}  // namespace
}  // namespace runtime
}  // namespace tvm
