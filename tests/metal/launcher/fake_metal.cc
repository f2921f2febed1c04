/*!
 * Metal's classes as far as the launcher uses them. Kernels run on the CPU (threadgroup.h), and as
 * late as Metal may run them: a command buffer is executed when somebody waits for it or a later
 * one, or with `fake_run_at_once` when it is committed.
 *
 * Meanwhile the host has no access to memory that a command buffer is to write, and may only read
 * what it is to read. Of the launches in one encoder, those without a barrier between them may not
 * touch what the other writes.
 */
#include <dlfcn.h>
#include <signal.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "fake_buffer.h"
#include "fake_commands.h"
#include "fake_kernels.h"
#include "fake_objc.h"
#include "threadgroup.h"

namespace fake {
namespace {

constexpr unsigned long kMaxThreads = 1024;
constexpr unsigned long kNewestLanguage = (3 << 16) + 2;                         // of macOS 15
constexpr long kApple7 = 1007, kApple10 = 1010, kMetal3 = 5001, kMetal4 = 5002;  // MTLGPUFamily
constexpr unsigned long kOnlyKept = 4;  // MTLPipelineOptionFailOnBinaryArchiveMiss
constexpr unsigned long kMostBuffers = 31, kMostBytes = 4096;

struct MetalSize {
  unsigned long width, height, depth;
};

bool run_at_once = false;
int macos = 15;         // which has Metal 4 from 26 on, that old programs know as 16
bool is_of_m5 = false;  // whether its GPU has units for tensor operations
const char* (*find_kernels)(const char* source) = nullptr;

/*! What launches of one encoder touch since the last barrier, as they run. */
struct Since {
  std::set<Buffer*> read, written;
};

struct Encoder : Object {
  Encoder(const char* name, Commands* commands) : Object(name), commands(commands) {
    retain(commands);
    commands->encoder = this;
  }
  ~Encoder() override {
    if (commands->encoder == this) fault("an encoder goes without `endEncoding`");
    release(commands);
  }
  Commands* commands;
};

struct Compute final : Encoder {
  Compute(Commands* commands, bool concurrent)
      : Encoder("MTLComputeCommandEncoder", commands), concurrent(concurrent) {}
  ~Compute() override { release(pipeline); }
  bool concurrent;
  Object* pipeline = nullptr;
  Buffer* bound[kMostBuffers] = {};
  std::string bytes[kMostBuffers];
  std::shared_ptr<Since> since = std::make_shared<Since>();
};

Commands* open_commands(Object* object, const char* what) {
  auto* commands = static_cast<Commands*>(object);
  if (commands->status >= kCommitted) fault("`%s` after `commit`", what);
  return commands;
}

template <typename Kind>
Kind* open_encoder(Object* object, const char* what) {
  auto* encoder = static_cast<Kind*>(object);
  if (encoder->commands->encoder != encoder) fault("`%s` after `endEncoding`", what);
  return encoder;
}

void check_range(const Buffer* buffer, unsigned long offset, unsigned long size, const char* what) {
  if (offset > buffer->length || size > buffer->length - offset)
    fault("`%s` leaves a buffer of %zu bytes", what, buffer->length);
}

/*! A launch as it was encoded. */
struct Dispatch {
  Function* function;
  Buffer* bound[kMostBuffers];
  std::vector<uint64_t> numbers;  // aligned as kernels take them
  emulator::Index grid, block;
  bool concurrent;
  std::shared_ptr<Since> since;

  std::string operator()() {
    std::vector<void*> arguments;
    std::vector<std::string> before;
    for (unsigned long i : function->parameters) {
      if (bound[i] == nullptr) continue;
      arguments.push_back(bound[i]->data);
      before.emplace_back(bound[i]->data, bound[i]->length);
    }
    const emulator::Launch launch{arguments.data(), numbers.data(), grid, block, false};
    const char* problem = function->emulate(launch);
    if (problem != nullptr) return problem;
    size_t place = 0;
    std::set<Buffer*> read, written;
    for (unsigned long i : function->parameters) {
      if (bound[i] == nullptr) continue;
      if (memcmp(bound[i]->data, before[place++].data(), bound[i]->length) != 0)
        function->written.insert(i);
      (function->written.count(i) != 0 ? written : read).insert(bound[i]);
    }
    for (Buffer* buffer : written) {
      if (since->written.count(buffer) != 0 || since->read.count(buffer) != 0) conflict();
    }
    for (Buffer* buffer : read) {
      if (since->written.count(buffer) != 0) conflict();
    }
    if (concurrent) {
      since->read.insert(read.begin(), read.end());
      since->written.insert(written.begin(), written.end());
    }
    return "";
  }
  void conflict() const {
    fault("kernel `%s` runs beside one that it has to wait for", function->name.c_str());
  }
};

emulator::Index index_of(MetalSize size) {
  const auto number = [](unsigned long value) { return static_cast<uint32_t>(value); };
  return {number(size.width), number(size.height), number(size.depth)};
}

void dispatch(Object* self, const char* name, MetalSize grid, MetalSize block) {
  auto* encoder = open_encoder<Compute>(self, name);
  if (encoder->pipeline == nullptr) fault("a launch without a pipeline");
  auto* function = static_cast<Pipeline*>(encoder->pipeline)->function;
  const unsigned long threads = block.width * block.height * block.depth;
  if (threads == 0 || threads > kMaxThreads) fault("%lu threads in a threadgroup", threads);
  if (grid.width * grid.height * grid.depth == 0) fault("a launch of no threadgroups");
  Dispatch launch{function,      {}, {}, index_of(grid), index_of(block), encoder->concurrent,
                  encoder->since};
  for (unsigned long i : function->parameters) {
    launch.bound[i] = encoder->bound[i];
    if (launch.bound[i] != nullptr) {
      encoder->commands->use(launch.bound[i], function->written.count(i) != 0);
    } else if (!encoder->bytes[i].empty()) {
      const std::string& bytes = encoder->bytes[i];
      launch.numbers.resize((bytes.size() + 7) / 8);
      memcpy(launch.numbers.data(), bytes.data(), bytes.size());
    } else {
      fault("kernel `%s`: nothing is bound at %lu", function->name.c_str(), i);
    }
  }
  encoder->commands->keep(function);
  encoder->commands->operations.emplace_back(launch);
}

void copy(Object* self, const char* name, Buffer* source, unsigned long from, Buffer* target,
          unsigned long to, unsigned long size) {
  auto* encoder = open_encoder<Encoder>(self, name);
  if ((from | to | size) % 4 != 0) fault("`%s`: offsets and sizes are multiples of 4", name);
  check_range(source, from, size, name);
  check_range(target, to, size, name);
  encoder->commands->use(source, false);
  encoder->commands->use(target, true);
  encoder->commands->operations.emplace_back([=]() -> std::string {
    memmove(target->data + to, source->data + from, size);
    return "";
  });
}

/*! Run committed command buffers in their order, up to one. */
void run_up_to(Commands* last) {
  std::vector<Commands*>& waiting = last->queue->committed;
  while (last->status < kDone) {
    Commands* next = waiting.front();
    waiting.erase(waiting.begin());
    next->run();
    release(next);
  }
}

void commit(Object* self, const char* name) {
  Commands* commands = open_commands(self, name);
  if (commands->encoder != nullptr) fault("`commit` while an encoder is open");
  commands->status = kCommitted;
  retain(commands);
  commands->queue->committed.push_back(commands);
  if (run_at_once) run_up_to(commands);
}

Object* new_library(Object*, const char*, Object* source, Object* options, Object** error) {
  if (options == nullptr) fault("kernels are compiled without options");
  auto* library = new Library(text_of(source));
  const char* path = find_kernels == nullptr ? nullptr : find_kernels(library->source.c_str());
  library->kernels = path == nullptr ? nullptr : dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library->kernels != nullptr) return library;
  release(library);
  *error = fake::error("program_source:1:1: error: no such kernel");
  return nullptr;
}

Object* new_function(Object* self, const char*, Object* name) {
  auto* library = static_cast<Library*>(self);
  const std::string symbol = "emulate_" + text_of(name);
  void* found = dlsym(library->kernels, symbol.c_str());
  if (found == nullptr) return nullptr;
  auto* function = new Function;
  function->name = text_of(name);
  function->emulate = reinterpret_cast<Emulate>(found);
  for (unsigned long i = 0; i < kMostBuffers; ++i) {
    const std::string place = "[[ buffer(" + std::to_string(i) + ") ]]";
    if (library->source.find(place) != std::string::npos) function->parameters.insert(i);
  }
  return function;
}

Object* new_pipeline(Object*, const char*, Object* object, unsigned long options, Object**,
                     Object** error) {
  auto* description = static_cast<Description*>(object);
  auto* function = static_cast<Function*>(description->function);
  auto* archive = static_cast<Archive*>(description->archive);
  const bool is_kept = archive != nullptr && archive->names.count(function->name) != 0;
  if ((options & kOnlyKept) == 0 || is_kept) return new Pipeline(function);
  *error = fake::error("no archive has it");
  return nullptr;
}

const bool defined = [] {
  struct sigaction action = {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, nullptr);

  class_of("MTLCompileOptions").make = +[]() -> Object* { return new CompileOptions; };
  class_of("MTLComputePipelineDescriptor").make = +[]() -> Object* { return new Description; };
  add_method("MTLCompileOptions", "setFastMathEnabled:", +[](Object*, const char*, bool) {});
  add_method(
      "MTLCompileOptions", "setLanguageVersion:", +[](Object*, const char*, unsigned long version) {
        if (version < 2 << 16 || version > (macos < 16 ? kNewestLanguage : 4ul << 16))
          fault("this macOS has no Metal language %lx", version);
      });
  add_method(
      "MTLComputePipelineDescriptor",
      "setComputeFunction:", +[](Object* self, const char*, Object* function) {
        retain(function);
        release(static_cast<Description*>(self)->function);
        static_cast<Description*>(self)->function = function;
      });
  add_method("MTLComputePipelineDescriptor", "setLabel:", +[](Object*, const char*, Object*) {});

  add_method(
      "MTLDevice", "name",
      +[](Object*, const char*) { return autoreleased(string("fake Metal device")); });
  add_method(
      "MTLDevice", "supportsFamily:", +[](Object*, const char*, long family) {
        if (family == kApple7 || family == kMetal3) return true;
        return (family == kMetal4 && macos >= 16) || (family == kApple10 && is_of_m5);
      });
  add_method(
      "MTLDevice", "newCommandQueue", +[](Object*, const char*) -> Object* { return new Queue; });
  add_method(
      "MTLDevice", "newBufferWithLength:options:",
      +[](Object*, const char*, unsigned long length, unsigned long options) -> Object* {
        if (length == 0 || options != 0) fault("a buffer that no kernel here can use");
        if (length > room) return nullptr;
        room -= length;
        return new Buffer(length);
      });
  add_method("MTLDevice", "newLibraryWithSource:options:error:", new_library);
  add_method("MTLDevice",
             "newComputePipelineStateWithDescriptor:options:reflection:error:", new_pipeline);
  add_method(
      "MTLBuffer", "contents",
      +[](Object* self, const char*) { return static_cast<Buffer*>(self)->data; });
  add_method("MTLLibrary", "newFunctionWithName:", new_function);
  add_method(
      "MTLComputePipelineState", "maxTotalThreadsPerThreadgroup",
      +[](Object*, const char*) { return kMaxThreads; });

  add_method(
      "MTLCommandQueue", "commandBuffer", +[](Object* self, const char*) {
        return autoreleased(new Commands(static_cast<Queue*>(self)));
      });
  add_method(
      "MTLCommandBuffer", "computeCommandEncoderWithDispatchType:",
      +[](Object* self, const char* name, unsigned long type) {
        Commands* commands = open_commands(self, name);
        if (commands->encoder != nullptr) fault("`%s` while an encoder is open", name);
        return autoreleased(new Compute(commands, type == 1));
      });
  add_method(
      "MTLCommandBuffer", "blitCommandEncoder", +[](Object* self, const char* name) {
        Commands* commands = open_commands(self, name);
        if (commands->encoder != nullptr) fault("`%s` while an encoder is open", name);
        return autoreleased(new Encoder("MTLBlitCommandEncoder", commands));
      });
  add_method("MTLCommandBuffer", "commit", commit);
  add_method(
      "MTLCommandBuffer", "waitUntilCompleted", +[](Object* self, const char*) {
        auto* commands = static_cast<Commands*>(self);
        if (commands->status < kCommitted) fault("`waitUntilCompleted` before `commit`");
        run_up_to(commands);
      });
  add_method(
      "MTLCommandBuffer", "status",
      +[](Object* self, const char*) { return static_cast<Commands*>(self)->status; });
  add_method(
      "MTLCommandBuffer", "error",
      +[](Object* self, const char*) { return lent(static_cast<Commands*>(self)->error); });

  for (const char* name : {"MTLComputeCommandEncoder", "MTLBlitCommandEncoder"}) {
    add_method(
        name, "endEncoding", +[](Object* self, const char* selector) {
          open_encoder<Encoder>(self, selector)->commands->encoder = nullptr;
        });
  }
  add_method("MTLBlitCommandEncoder",
             "copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:", copy);
  const char* compute = "MTLComputeCommandEncoder";
  add_method(
      compute, "setComputePipelineState:", +[](Object* self, const char* name, Object* pipeline) {
        auto* encoder = open_encoder<Compute>(self, name);
        retain(pipeline);
        release(encoder->pipeline);
        encoder->pipeline = pipeline;
      });
  add_method(
      compute, "setBuffer:offset:atIndex:",
      +[](Object* self, const char* name, Buffer* buffer, unsigned long offset,
          unsigned long index) {
        auto* encoder = open_encoder<Compute>(self, name);
        if (index >= kMostBuffers || offset != 0) fault("a buffer at no place");
        encoder->commands->keep(buffer);
        encoder->bound[index] = buffer;
        encoder->bytes[index].clear();
      });
  add_method(
      compute, "setBytes:length:atIndex:",
      +[](Object* self, const char* name, const char* bytes, unsigned long length,
          unsigned long index) {
        auto* encoder = open_encoder<Compute>(self, name);
        if (index >= kMostBuffers || length > kMostBytes) fault("numbers at no place");
        encoder->bound[index] = nullptr;
        encoder->bytes[index].assign(bytes, length);
      });
  add_method(
      compute, "memoryBarrierWithScope:", +[](Object* self, const char* name, unsigned long scope) {
        auto* encoder = open_encoder<Compute>(self, name);
        if ((scope & 1) != 0) encoder->since = std::make_shared<Since>();
      });
  add_method(compute, "dispatchThreadgroups:threadsPerThreadgroup:", dispatch);
  return true;
}();

}  // namespace

extern "C" {

Object* MTLCreateSystemDefaultDevice() {
  struct Device final : Object {
    Device() : Object("MTLDevice") {}
  };
  static auto* device = new Device;
  retain(device);
  return device;
}

int sysctlbyname(const char* name, void* value, size_t* bytes, void*, size_t) {
  if (strcmp(name, "kern.osproductversion") != 0) return -1;
  *bytes = static_cast<size_t>(snprintf(static_cast<char*>(value), *bytes, "%d.1", macos)) + 1;
  return 0;
}

/*! Have another version of macOS, and maybe an M5. */
void fake_set_macos(int version, bool m5) {
  macos = version;
  is_of_m5 = m5;
}

/*! Say which library has the kernels of a source. */
void fake_set_kernels(const char* (*find)(const char*)) { find_kernels = find; }
void fake_set_run_at_once(bool value) { run_at_once = value; }
void fake_set_room(size_t bytes) { room = bytes; }
}

}  // namespace fake
