/*!
 * Memory, uploads, launches and waits; see launcher.h.
 */
#include "launcher.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "written.h"

namespace gemma4_metal {

namespace {

// Metal's numbers.
constexpr unsigned long kShared = 0;             // MTLResourceStorageModeShared
constexpr unsigned long kConcurrent = 1;         // MTLDispatchTypeConcurrent
constexpr unsigned long kOfBuffers = 1;          // MTLBarrierScopeBuffers
constexpr unsigned long kOnlyKept = 4;           // MTLPipelineOptionFailOnBinaryArchiveMiss
constexpr unsigned long kDone = 4, kFailed = 5;  // MTLCommandBufferStatus

constexpr size_t kStageBytes = 16 * 1024;  // a page
constexpr size_t kMostStages = 64;
constexpr size_t kRounding = 16;  // kernels read vectors of as many bytes
constexpr size_t kBlitBytes = 4;  // macOS: a blit's offsets and size are multiples of them

bool Holds(const std::vector<Buffer*>& buffers, const Buffer* buffer) {
  return std::find(buffers.begin(), buffers.end(), buffer) != buffers.end();
}

/*! Whether a blit copies it; of offsets and a size, their bits together. */
bool IsBlit(size_t places) { return places % kBlitBytes == 0; }

}  // namespace

void Error::Set(const char* format, ...) {
  if (text[0] != '\0') return;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
}

Error Launcher::Open(size_t launches) {
  Error error;
  const char* missing = FindSystem();
  if (missing != nullptr) {
    error.Set("this system has no `%s`", missing);
    return error;
  }
  const Pool pool;
  device_ = objc.create_device();
  if (device_ == nullptr) {
    error.Set("this computer has no Metal device");
    return error;
  }
  queue_ = Send(device_, objc.queue);
  if (queue_ == nullptr) error.Set("Metal gave no command queue");
  snprintf(name_, sizeof(name_), "%s", Text(Send(device_, objc.name)));
  launches_ = std::max<size_t>(1, launches);
  has_tensors_ = HasTensors(device_);
  // MTLLanguageVersion: the newest of each macOS. It is not asked for where that is not known.
  constexpr unsigned long kMajor = 1 << 16;
  const int macos = MacosVersion();
  if (macos >= 26) {
    language_ = 4 * kMajor;
  } else if (macos >= 13) {
    language_ = 3 * kMajor + static_cast<unsigned long>(std::min(macos - 13, 2));
  }
  return error;
}

// --- Memory ---

Buffer* Launcher::Allocate(size_t bytes) {
  const Pool pool;
  const size_t rounded = std::max<size_t>(1, (bytes + kRounding - 1) / kRounding) * kRounding;
  const Id object = Send(device_, objc.new_buffer, static_cast<unsigned long>(rounded), kShared);
  if (object == nullptr) {
    error_.Set("no room for %zu bytes on the metal device", bytes);
    return nullptr;
  }
  return new Buffer{object, Send<char*>(object, objc.contents), rounded};
}

void Launcher::Free(Buffer* buffer) {
  if (buffer == nullptr) return;
  const Pool pool;
  Send<void>(buffer->object, objc.release);
  // Another buffer may get the address: what is noted of this one would only cost a barrier.
  delete buffer;
}

void Launcher::Upload(const void* source, Buffer* buffer, size_t offset, size_t bytes) {
  if (buffer == nullptr || bytes == 0) return;
  const Pool pool;
  if (buffer->used > done_) Poll();
  const bool is_staged = bytes <= kStageBytes && IsBlit(offset | bytes);
  if (buffer->used > done_ && !is_staged) WaitFor(buffer->used);
  if (buffer->used <= done_) {
    memcpy(buffer->contents + offset, source, bytes);
    return;
  }
  Stage* stage = FreeStage();
  if (stage == nullptr) {
    WaitFor(buffer->used);
    memcpy(buffer->contents + offset, source, bytes);
    return;
  }
  memcpy(stage->contents, source, bytes);
  Encode(Encoding::kBlit);
  Send<void>(encoder_, objc.copy, stage->object, 0ul, buffer->object,
             static_cast<unsigned long>(offset), static_cast<unsigned long>(bytes));
  stage->used = number_;
  Use(buffer, true);
  ++counts_.staged_uploads;
}

Launcher::Stage* Launcher::FreeStage() {
  if (stages_.size() == kMostStages) {
    Stage* next = &stages_[next_stage_++ % kMostStages];
    if (next->used > done_) WaitFor(next->used);
    return next;
  }
  for (Stage& stage : stages_) {
    if (stage.used <= done_) return &stage;
  }
  const Id object =
      Send(device_, objc.new_buffer, static_cast<unsigned long>(kStageBytes), kShared);
  if (object == nullptr) return nullptr;
  stages_.push_back({object, Send<char*>(object, objc.contents), 0});
  return &stages_.back();
}

void Launcher::Read(Buffer* buffer, size_t offset, void* target, size_t bytes) {
  if (buffer == nullptr || bytes == 0) return;
  const Pool pool;
  if (buffer->written > done_) WaitFor(buffer->written);
  memcpy(target, buffer->contents + offset, bytes);
}

void Launcher::Copy(Buffer* source, size_t source_offset, Buffer* target, size_t offset,
                    size_t bytes) {
  if (source == nullptr || target == nullptr || bytes == 0) return;
  const Pool pool;
  if (!IsBlit(source_offset | offset | bytes)) {
    WaitFor(std::max(source->written, target->used));
    memmove(target->contents + offset, source->contents + source_offset, bytes);
    return;
  }
  Encode(Encoding::kBlit);
  Send<void>(encoder_, objc.copy, source->object, static_cast<unsigned long>(source_offset),
             target->object, static_cast<unsigned long>(offset), static_cast<unsigned long>(bytes));
  Use(source, false);
  Use(target, true);
}

// --- Launches ---

Error Launcher::Launch(Kernel* kernel, Buffer* const* buffers, const void* numbers,
                       size_t number_bytes, Size grid, Size block) {
  Error error = TakeError();
  if (error) return error;
  const Pool pool;
  if (kernel->pipeline == nullptr) Compile(kernel, &error);
  if (error) return error;
  const unsigned long threads = block.width * block.height * block.depth;
  if (threads > kernel->max_threads) {
    error.Set("kernel `%s`: %lu threads a threadgroup, and this device runs at most %lu of it",
              kernel->name, threads, kernel->max_threads);
    return error;
  }
  for (size_t i = 0; i < kernel->buffers; ++i) {
    if (buffers[i] == nullptr) error.Set("kernel `%s`: buffer %zu is missing", kernel->name, i);
  }
  if (error) return error;

  Encode(Encoding::kCompute);
  Order(*kernel, buffers);
  if (pipeline_ != kernel->pipeline) {
    Send<void>(encoder_, objc.set_pipeline, kernel->pipeline);
    pipeline_ = kernel->pipeline;
  }
  for (size_t i = 0; i < kernel->buffers; ++i) {
    Send<void>(encoder_, objc.set_buffer, buffers[i]->object, 0ul, static_cast<unsigned long>(i));
    Use(buffers[i], (kernel->written >> i & 1) != 0);
  }
  if (number_bytes != 0) {
    Send<void>(encoder_, objc.set_bytes, numbers, static_cast<unsigned long>(number_bytes),
               static_cast<unsigned long>(kernel->buffers));
  }
  Send<void>(encoder_, objc.dispatch, grid, block);
  kernels_.push_back(kernel->name);
  ++counts_.launches;
  if (kernels_.size() >= launches_) Submit();
  return error;
}

void Launcher::Compile(Kernel* kernel, Error* error) {
  kernel->name = Interned(kernel->name);
  if (NeedsTensors(kernel->source) && !has_tensors_) {
    error->Set(
        "kernel `%s` multiplies by Metal 4's tensor operations: macOS 26 has them for M5 and "
        "later, and this is macOS %d on %s",
        kernel->name, MacosVersion(), name_);
    return;
  }
  const Owned options(New("MTLCompileOptions"));
  Send<void>(options.get(), objc.set_fast_math, true);
  if (language_ != 0) Send<void>(options.get(), objc.set_language, language_);
  Id problem = nullptr;
  const Owned library(Send(device_, objc.new_library, String(kernel->source), options.get(),
                           static_cast<Id*>(&problem)));
  if (!library) {
    error->Set("kernel `%s` does not compile: %s", kernel->name,
               Text(Send(problem, objc.description)));
    return;
  }
  const Owned function(Send(library.get(), objc.new_function, String(kernel->name)));
  if (!function) {
    error->Set("kernel `%s` is not in its own source", kernel->name);
    return;
  }
  const Owned description(New("MTLComputePipelineDescriptor"));
  Send<void>(description.get(), objc.set_function, function.get());
  Send<void>(description.get(), objc.set_label, String(kernel->name));
  kernel->pipeline = MakePipeline(description.get(), &problem);
  if (kernel->pipeline == nullptr) {
    error->Set("kernel `%s` is refused by the GPU's compiler: %s", kernel->name,
               Text(Send(problem, objc.description)));
    return;
  }
  kernel->max_threads = Send<unsigned long>(kernel->pipeline, objc.max_threads);
  kernel->written = WrittenBuffers(kernel->source, kernel->buffers);
}

Id Launcher::MakePipeline(Id description, Id* problem) {
  const auto make = [this, description, problem](unsigned long options) {
    return Send(device_, objc.new_pipeline, description, options, static_cast<Id*>(nullptr),
                problem);
  };
  if (archive_ != nullptr) {
    const Id archives = Send(objc.get_class("NSArray"), objc.array, archive_);
    Send<void>(description, objc.set_archives, archives);
    const Id kept = make(kOnlyKept);
    if (kept != nullptr) ++counts_.kept_pipelines;
    if (kept != nullptr) return kept;
    // What cannot be added is made all the same.
    Send<bool>(archive_, objc.add_functions, description, problem);
  }
  ++counts_.new_pipelines;
  return make(0);
}

void Launcher::OpenArchive(const char* path) {
  const Pool pool;
  const Owned description(New("MTLBinaryArchiveDescriptor"));
  Id problem = nullptr;
  if (path[0] != '\0') {
    Send<void>(description.get(), objc.set_url, FileUrl(path));
    archive_ = Send(device_, objc.new_archive, description.get(), static_cast<Id*>(&problem));
  }
  if (archive_ != nullptr) return;
  Send<void>(description.get(), objc.set_url, static_cast<Id>(nullptr));
  archive_ = Send(device_, objc.new_archive, description.get(), static_cast<Id*>(&problem));
}

bool Launcher::SaveArchive(const char* path) {
  if (archive_ == nullptr || counts_.new_pipelines == 0) return false;
  const Pool pool;
  Id problem = nullptr;
  return Send<bool>(archive_, objc.serialize, FileUrl(path), static_cast<Id*>(&problem));
}

void Launcher::Forget(Kernel* kernel) {
  if (kernel->pipeline == nullptr) return;
  const Pool pool;
  if (pipeline_ == kernel->pipeline) pipeline_ = nullptr;
  Send<void>(kernel->pipeline, objc.release);
  kernel->pipeline = nullptr;
}

const char* Launcher::Interned(const char* name) {
  for (const char* known : names_) {
    if (strcmp(known, name) == 0) return known;
  }
  names_.push_back(strdup(name));
  return names_.back();
}

void Launcher::Order(const Kernel& kernel, Buffer* const* buffers) {
  bool waits = false;
  for (size_t i = 0; i < kernel.buffers && !waits; ++i) {
    const bool writes = (kernel.written >> i & 1) != 0;
    waits = Holds(written_, buffers[i]) || (writes && Holds(read_, buffers[i]));
  }
  if (waits) {
    Send<void>(encoder_, objc.barrier, kOfBuffers);
    ++counts_.barriers;
    read_.clear();
    written_.clear();
  }
  for (size_t i = 0; i < kernel.buffers; ++i) {
    ((kernel.written >> i & 1) != 0 ? written_ : read_).push_back(buffers[i]);
  }
}

void Launcher::Use(Buffer* buffer, bool writes) {
  buffer->used = number_;
  if (writes) buffer->written = number_;
}

// --- Command buffers ---

void Launcher::Encode(Encoding encoding) {
  if (encoding_ == encoding) return;
  EndEncoding();
  if (commands_ == nullptr) {
    commands_ = Send(Send(queue_, objc.commands), objc.retain);
    ++counts_.command_buffers;
  }
  const Id encoder = encoding == Encoding::kCompute ? Send(commands_, objc.compute, kConcurrent)
                                                    : Send(commands_, objc.blit);
  encoder_ = Send(encoder, objc.retain);
  encoding_ = encoding;
}

void Launcher::EndEncoding() {
  if (encoding_ == Encoding::kNone) return;
  Send<void>(encoder_, objc.end);
  Send<void>(encoder_, objc.release);
  encoder_ = pipeline_ = nullptr;
  encoding_ = Encoding::kNone;
  read_.clear();  // Metal orders encoders by the buffers that they use
  written_.clear();
}

void Launcher::Submit() {
  if (commands_ == nullptr) return;
  const Pool pool;
  EndEncoding();
  Send<void>(commands_, objc.commit);
  committed_.push_back({number_, commands_, {}});
  committed_.back().kernels.swap(kernels_);
  commands_ = nullptr;
  ++number_;
}

void Launcher::Poll() {
  size_t count = 0;
  while (count < committed_.size() &&
         Send<unsigned long>(committed_[count].commands, objc.status) >= kDone) {
    ++count;
  }
  Retire(count);
}

void Launcher::WaitFor(uint64_t number) {
  if (number >= number_) Submit();
  size_t count = 0;
  while (count < committed_.size() && committed_[count].number <= number) ++count;
  if (count == 0) return;
  for (size_t i = 0; i < count; ++i) Send<void>(committed_[i].commands, objc.wait);
  ++counts_.waits;
  Retire(count);
}

void Launcher::Retire(size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const Committed& done = committed_[i];
    if (Send<unsigned long>(done.commands, objc.status) == kFailed) {
      char names[kErrorBytes / 2] = "";
      for (const char* name : done.kernels) {
        const size_t used = strlen(names);
        snprintf(names + used, sizeof(names) - used, "%s`%s`", used == 0 ? "" : ", ", name);
      }
      error_.Set("the GPU failed: %s; kernels: %s",
                 Text(Send(Send(done.commands, objc.error), objc.description)), names);
    }
    Send<void>(done.commands, objc.release);
    done_ = done.number;
  }
  committed_.erase(committed_.begin(), committed_.begin() + static_cast<std::ptrdiff_t>(count));
}

void Launcher::Wait() {
  const Pool pool;
  WaitFor(number_);
}

Error Launcher::TakeError() {
  const Error error = error_;
  error_ = Error();
  return error;
}

}  // namespace gemma4_metal
