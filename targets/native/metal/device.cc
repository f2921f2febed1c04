/*!
 * The launcher as a device and as modules of TVM's runtime, in the place of TVM's own for Metal.
 *
 * Nothing here throws into TVM's C++ (library.h): what a device's function finds wrong is the error
 * of the next launch or wait, which are called through C.
 */
// The two classes that are derived from are this library's own, with the same functions in the same
// order: a library that asked TVM for theirs could not be loaded by another version at all.
#define TVM_FFI_EXTRA_CXX_API
#define TVM_RUNTIME_DLL
#define TVM_RUNTIME_DLL_EXPORT

#include <tvm/ffi/cast.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/runtime/device_api.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "launcher.h"
#include "library.h"
#include "src/runtime/metadata.h"
#include "src/runtime/pack_args.h"
#include "src/runtime/thread_storage_scope.h"
#include "src/support/bytes_io.h"

// --- What their tables of functions name; MetalDevice and MetalModule have their own of each ---

namespace tvm {
namespace ffi {
void ModuleObj::ImportModule(const Module& other) { imports_.push_back(other); }
void ModuleObj::ClearImports() { imports_.clear(); }
}  // namespace ffi
namespace runtime {
size_t DeviceAPI::GetDataSize(const DLTensor&, ffi::Optional<ffi::String>) { return 0; }
void* DeviceAPI::AllocDataSpace(Device, int, const int64_t*, DLDataType,
                                ffi::Optional<ffi::String>) {
  return nullptr;
}
void DeviceAPI::CopyDataFromTo(DLTensor*, DLTensor*, TVMStreamHandle) {}
void DeviceAPI::CopyDataFromTo(const void*, size_t, void*, size_t, size_t, Device, Device,
                               DLDataType, TVMStreamHandle) {}
TVMStreamHandle DeviceAPI::CreateStream(Device) { return nullptr; }
void DeviceAPI::FreeStream(Device, TVMStreamHandle) {}
void DeviceAPI::SetStream(Device, TVMStreamHandle) {}
TVMStreamHandle DeviceAPI::GetCurrentStream(Device) { return nullptr; }
void DeviceAPI::SyncStreamFromTo(Device, TVMStreamHandle, TVMStreamHandle) {}
void* DeviceAPI::AllocWorkspace(Device, size_t, DLDataType) { return nullptr; }
void DeviceAPI::FreeWorkspace(Device, void*) {}
}  // namespace runtime
}  // namespace tvm

namespace gemma4_metal {

namespace {

namespace ffi = tvm::ffi;
namespace runtime = tvm::runtime;
using tvm::Device;

/*! Of the process: the first library that was asked for it has it, and it lasts. */
Launcher* launcher = nullptr;

/*! Throw what went wrong; within a function that TVM calls through C. */
void Raise(const Error& error) {
  if (error) TVM_FFI_THROW(RuntimeError) << error.text;
}

size_t BytesOf(const DLTensor& tensor) {
  size_t bytes = (tensor.dtype.bits * tensor.dtype.lanes + 7) / 8;
  for (int i = 0; i < tensor.ndim; ++i) bytes *= static_cast<size_t>(tensor.shape[i]);
  return bytes;
}

/*! Every function is our own, so that the library asks TVM's for none. */
class MetalDevice final : public runtime::DeviceAPI {
 public:
  void SetDevice(Device) final {}
  void GetAttr(Device, runtime::DeviceAttrKind kind, ffi::Any* value) final {
    if (kind == runtime::kExist) *value = 1;
    if (kind == runtime::kDeviceName) *value = ffi::String(launcher->name());
  }
  size_t GetDataSize(const DLTensor& tensor, ffi::Optional<ffi::String>) final {
    return BytesOf(tensor);
  }
  void GetTargetProperty(Device, const std::string&, ffi::Any*) final {}
  void* AllocDataSpace(Device, size_t bytes, size_t, DLDataType) final {
    const Launcher::Lock lock(launcher);
    return launcher->Allocate(bytes);
  }
  void* AllocDataSpace(Device device, int ndim, const int64_t* shape, DLDataType dtype,
                       ffi::Optional<ffi::String>) final {
    const DLTensor tensor{nullptr, device, ndim, dtype, const_cast<int64_t*>(shape), nullptr, 0};
    const Launcher::Lock lock(launcher);
    return launcher->Allocate(BytesOf(tensor));
  }
  void FreeDataSpace(Device, void* handle) final {
    const Launcher::Lock lock(launcher);
    launcher->Free(static_cast<Buffer*>(handle));
  }
  void CopyDataFromTo(DLTensor* from, DLTensor* to, TVMStreamHandle stream) final {
    CopyDataFromTo(from->data, from->byte_offset, to->data, to->byte_offset, BytesOf(*from),
                   from->device, to->device, from->dtype, stream);
  }
  TVMStreamHandle CreateStream(Device) final { return nullptr; }
  void FreeStream(Device, TVMStreamHandle) final {}
  void StreamSync(Device, TVMStreamHandle) final {
    const Launcher::Lock lock(launcher);
    launcher->Wait();
  }
  void SetStream(Device, TVMStreamHandle) final {}
  TVMStreamHandle GetCurrentStream(Device) final { return nullptr; }
  void SyncStreamFromTo(Device, TVMStreamHandle, TVMStreamHandle) final {}
  void* AllocWorkspace(Device device, size_t bytes, DLDataType dtype) final {
    return AllocDataSpace(device, bytes, 0, dtype);
  }
  void FreeWorkspace(Device device, void* handle) final { FreeDataSpace(device, handle); }

 protected:
  void CopyDataFromTo(const void* from, size_t from_offset, void* to, size_t to_offset,
                      size_t bytes, Device from_device, Device to_device, DLDataType,
                      TVMStreamHandle) final {
    const bool is_read = to_device.device_type != kDLMetal;
    const bool is_upload = from_device.device_type != kDLMetal;
    auto* source = static_cast<Buffer*>(const_cast<void*>(from));
    auto* target = static_cast<Buffer*>(to);
    const Launcher::Lock lock(launcher);
    if (is_read) {
      launcher->Read(source, from_offset, static_cast<char*>(to) + to_offset, bytes);
    } else if (is_upload) {
      launcher->Upload(static_cast<const char*>(from) + from_offset, target, to_offset, bytes);
    } else {
      launcher->Copy(source, from_offset, target, to_offset, bytes);
    }
  }
};

/*! The kernels of a library. */
class MetalModule final : public ffi::ModuleObj {
 public:
  MetalModule(ffi::Map<ffi::String, ffi::String> sources,
              ffi::Map<ffi::String, runtime::FunctionInfo> infos)
      : sources_(std::move(sources)), infos_(std::move(infos)) {}
  ~MetalModule() {
    const Launcher::Lock lock(launcher);
    for (Kernel* kernel : kernels_) {
      launcher->Forget(kernel);
      delete kernel;
    }
  }
  const char* kind() const final { return "metal"; }
  int GetPropertyMask() const final {
    return ffi::Module::kBinarySerializable | ffi::Module::kRunnable;
  }
  ffi::Optional<ffi::Function> GetFunction(const ffi::String& name) final {
    const auto info = infos_.Get(name);
    const auto source = sources_.Get(name);
    if (!info.has_value() || !source.has_value()) return std::nullopt;
    const auto& types = info.value()->arg_types;
    const size_t count = runtime::NumBufferArgs(types);
    if (count >= kMostBuffers) return std::nullopt;
    // Texts are those of the maps, which stay.
    auto* kernel = new Kernel{info.value()->name.c_str(), source.value().c_str(), count};
    kernels_.push_back(kernel);
    runtime::LaunchParamConfig config;
    config.Init(types.size(), info.value()->launch_param_tags);
    const size_t number_bytes = (types.size() - count) * sizeof(runtime::ArgUnion64);
    const auto self = ffi::GetObjectPtr<MetalModule>(this);
    return runtime::PackFuncNonBufferArg(
        [self, kernel, config, number_bytes](ffi::PackedArgs args, ffi::Any*,
                                             const runtime::ArgUnion64* numbers) {
          Buffer* buffers[kMostBuffers];
          for (size_t i = 0; i < kernel->buffers; ++i) {
            buffers[i] = static_cast<Buffer*>(args[static_cast<int>(i)].cast<void*>());
          }
          const runtime::ThreadWorkLoad load = config.Extract(args);
          Error error;
          {
            const Launcher::Lock lock(launcher);
            error = launcher->Launch(kernel, buffers, numbers, number_bytes,
                                     {load.grid_dim(0), load.grid_dim(1), load.grid_dim(2)},
                                     {load.block_dim(0), load.block_dim(1), load.block_dim(2)});
          }
          Raise(error);
        },
        types);
  }

 private:
  ffi::Map<ffi::String, ffi::String> sources_;
  ffi::Map<ffi::String, runtime::FunctionInfo> infos_;
  std::vector<Kernel*> kernels_;
};

ffi::Module LoadKernels(const ffi::Bytes& bytes) {
  tvm::support::BytesInStream stream(bytes);
  ffi::String format;
  ffi::Map<ffi::String, runtime::FunctionInfo> infos;
  ffi::Map<ffi::String, ffi::String> sources;
  if (!stream.Read(&format) || !stream.Read(&infos) || !stream.Read(&sources) ||
      format != "metal") {
    TVM_FFI_THROW(RuntimeError) << "the library's kernels are in no form that the launcher reads";
  }
  return ffi::Module(ffi::make_object<MetalModule>(std::move(sources), std::move(infos)));
}

void* OpenedDevice() {
  static auto* device = new MetalDevice;
  return static_cast<runtime::DeviceAPI*>(device);
}

void Submit() {
  const Launcher::Lock lock(launcher);
  launcher->Submit();
}

/*! Wait for everything; an error if anything went wrong since the last time. */
void Wait() {
  Error error;
  {
    const Launcher::Lock lock(launcher);
    launcher->Wait();
    error = launcher->TakeError();
  }
  Raise(error);
}

/*! An error if anything is known to have gone wrong. */
void Check() {
  Error error;
  {
    const Launcher::Lock lock(launcher);
    error = launcher->TakeError();
  }
  Raise(error);
}

/*! Write compiled pipelines to a file; false where there is nothing new to write. */
bool SaveArchive(ffi::String path) {
  const Launcher::Lock lock(launcher);
  return launcher->SaveArchive(path.c_str());
}

/*! What was done since the beginning, in the order of `Counts`. */
ffi::Array<int64_t> CountsOf() {
  const Launcher::Lock lock(launcher);
  const Counts& counts = launcher->counts();
  return {counts.launches,       counts.command_buffers, counts.barriers,     counts.waits,
          counts.staged_uploads, counts.kept_pipelines,  counts.new_pipelines};
}

/*!
 * Make the launcher the process' device for Metal, once.
 *
 * launches: of a command buffer, at most; version: of the TVM that runs here, whose classes this
 * was compiled with; archive: a file of compiled pipelines, "" for none yet.
 */
void Install(int64_t launches, ffi::String version, ffi::String archive) {
  if (version != TVM_VERSION) {
    TVM_FFI_THROW(RuntimeError) << "the library was made with TVM " << TVM_VERSION
                                << ", and this process runs " << version;
  }
  if (ffi::Function::GetGlobal("gemma4_metal.wait").has_value()) return;  // another library's
  if (ffi::Function::GetGlobal("device_api.metal").has_value()) {
    TVM_FFI_THROW(RuntimeError) << "this process has TVM's runtime for Metal";
  }
  auto* opened = new Launcher;
  const Error error = opened->Open(static_cast<size_t>(launches));
  if (error) {
    delete opened;
    Raise(error);
  }
  opened->OpenArchive(archive.c_str());
  launcher = opened;
  namespace refl = tvm::ffi::reflection;
  refl::GlobalDef()
      .def("ffi.Module.load_from_bytes.metal", LoadKernels)
      .def("device_api.metal", OpenedDevice)
      .def("gemma4_metal.submit", Submit)
      .def("gemma4_metal.check", Check)
      .def("gemma4_metal.counts", CountsOf)
      .def("gemma4_metal.save", SaveArchive)
      .def("gemma4_metal.wait", Wait);
}

}  // namespace

}  // namespace gemma4_metal

GEMMA4_FUNCTION(gemma4_metal_install, gemma4_metal::Install)
