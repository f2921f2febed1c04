/*!
 * Drives a GPU of Apple: memory, kernels, and the command buffers that they are launched in.
 *
 * Launches are encoded into a command buffer that is committed, without a wait, when it has some,
 * when `Submit` says that a step is complete, and before anything is waited for. The GPU works on
 * committed ones while the next are encoded. A read waits for the command buffer that writes what is
 * read, and for no later one.
 *
 * Of the launches in one command buffer, those that need nothing of one another run at the same
 * time: a barrier stands before a launch that reads what one since the last barrier writes, or
 * writes what one reads or writes.
 *
 * Errors are texts, "" for none. What fails on the GPU is known when it is waited for, and is the
 * error of whatever comes next.
 */
#ifndef GEMMA4_COMPILE_METAL_LAUNCHER_H_
#define GEMMA4_COMPILE_METAL_LAUNCHER_H_

#include <pthread.h>

#include <vector>

#include "objc.h"

namespace gemma4_metal {

constexpr size_t kMostBuffers = 31;  // of a kernel, with its numbers
constexpr size_t kErrorBytes = 1024;

/*! An error's text. */
struct Error {
  char text[kErrorBytes] = "";
  explicit operator bool() const { return text[0] != '\0'; }
  /*! Set the text if there is none yet. */
  void Set(const char* format, ...) __attribute__((format(printf, 2, 3)));
};

/*! Memory of the GPU and the host. Command buffers are told by number, from 1. */
struct Buffer {
  Id object;
  char* contents;
  size_t bytes;
  uint64_t used = 0;     // by which command buffer last, 0 for none
  uint64_t written = 0;  // the same of writing
};

/*! A kernel, compiled when it is first launched. */
struct Kernel {
  const char* name;
  const char* source;
  size_t buffers;        // in the order of its parameters
  uint32_t written = 0;  // which of them it may write, as bits
  Id pipeline = nullptr;
  unsigned long max_threads = 0;
};

struct Counts {
  int64_t launches = 0, command_buffers = 0, barriers = 0, waits = 0, staged_uploads = 0;
  int64_t kept_pipelines = 0, new_pipelines = 0;
};

class Launcher {
 public:
  /*! Open the first device. `launches`: of a command buffer. */
  Error Open(size_t launches);
  /*!
   * Take compiled pipelines from a file, and collect those that are not in it. One that Metal does
   * not take, or "", is as an empty one.
   */
  void OpenArchive(const char* path);
  /*! Write the pipelines of the archive to a file; false where none is new, or it fails. */
  bool SaveArchive(const char* path);
  /*! The device's name. */
  const char* name() const { return name_; }
  const Counts& counts() const { return counts_; }

  /*! Memory, undefined; null where there is no room. */
  Buffer* Allocate(size_t bytes);
  /*! Give memory back; launches that use it keep it until they are done. */
  void Free(Buffer* buffer);

  void Upload(const void* source, Buffer* buffer, size_t offset, size_t bytes);
  void Read(Buffer* buffer, size_t offset, void* target, size_t bytes);
  void Copy(Buffer* source, size_t source_offset, Buffer* target, size_t offset, size_t bytes);

  Error Launch(Kernel* kernel, Buffer* const* buffers, const void* numbers, size_t number_bytes,
               Size grid, Size block);
  /*! Give a kernel's pipeline back. */
  void Forget(Kernel* kernel);

  /*! Commit what is encoded. */
  void Submit();
  /*! Wait for everything. */
  void Wait();
  /*! What went wrong since the last time that it was asked. */
  Error TakeError();

  /*! Keeps the threads of a process apart. */
  class Lock {
   public:
    explicit Lock(Launcher* launcher) : launcher_(launcher) {
      pthread_mutex_lock(&launcher_->mutex_);
    }
    ~Lock() { pthread_mutex_unlock(&launcher_->mutex_); }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

   private:
    Launcher* launcher_;
  };

 private:
  enum class Encoding { kNone, kCompute, kBlit };

  /*! A committed command buffer, and the names of its kernels. */
  struct Committed {
    uint64_t number;
    Id commands;
    std::vector<const char*> kernels;
  };

  /*! Memory that uploads go through where the GPU has work for what they overwrite. */
  struct Stage {
    Id object;
    char* contents;
    uint64_t used;
  };

  void Encode(Encoding encoding);
  void EndEncoding();
  void Use(Buffer* buffer, bool writes);
  void Order(const Kernel& kernel, Buffer* const* buffers);
  void Compile(Kernel* kernel, Error* error);
  Id MakePipeline(Id description, Id* problem);
  Stage* FreeStage();
  const char* Interned(const char* name);
  /*! Note which command buffers are done, without a wait. */
  void Poll();
  /*! Wait for a command buffer and those before it. */
  void WaitFor(uint64_t number);
  void Retire(size_t count);

  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
  Id device_ = nullptr, queue_ = nullptr, archive_ = nullptr;
  char name_[128] = "";
  unsigned long language_ = 0;
  bool has_tensors_ = false;  // tensor operations, in units of the GPU
  size_t launches_ = 0;       // of a command buffer

  Id commands_ = nullptr;  // the open one
  Id encoder_ = nullptr;
  Encoding encoding_ = Encoding::kNone;
  uint64_t number_ = 1, done_ = 0;  // of the open one; of the last one that is done
  std::vector<const char*> kernels_;
  Id pipeline_ = nullptr;                // what the encoder has
  std::vector<Buffer*> read_, written_;  // since the last barrier

  std::vector<Committed> committed_;
  std::vector<Stage> stages_;
  size_t next_stage_ = 0;
  std::vector<const char*> names_;
  Error error_;
  Counts counts_;
};

}  // namespace gemma4_metal

#endif  // GEMMA4_COMPILE_METAL_LAUNCHER_H_
