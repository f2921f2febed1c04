/*!
 * Messages to Metal's objects without an Objective-C compiler: functions of the system that are
 * looked up when they are first needed, so that a library loads where they are not.
 */
#ifndef GEMMA4_COMPILE_METAL_OBJC_H_
#define GEMMA4_COMPILE_METAL_OBJC_H_

#include <cstddef>
#include <cstdint>

namespace gemma4_metal {

using Id = void*;
using Selector = const void*;

/*! MTLSize. */
struct Size {
  unsigned long width, height, depth;
};

/*! Selectors by our names for them. */
#define GEMMA4_SELECTORS(X)                                                          \
  X(alloc, "alloc")                                                                  \
  X(init, "init")                                                                    \
  X(retain, "retain")                                                                \
  X(release, "release")                                                              \
  X(string, "stringWithUTF8String:")                                                 \
  X(utf8, "UTF8String")                                                              \
  X(description, "localizedDescription")                                             \
  X(name, "name")                                                                    \
  X(queue, "newCommandQueue")                                                        \
  X(supports_family, "supportsFamily:")                                              \
  X(new_buffer, "newBufferWithLength:options:")                                      \
  X(contents, "contents")                                                            \
  X(set_fast_math, "setFastMathEnabled:")                                            \
  X(set_language, "setLanguageVersion:")                                             \
  X(new_library, "newLibraryWithSource:options:error:")                              \
  X(new_function, "newFunctionWithName:")                                            \
  X(set_function, "setComputeFunction:")                                             \
  X(set_label, "setLabel:")                                                          \
  X(set_archives, "setBinaryArchives:")                                              \
  X(set_url, "setUrl:")                                                              \
  X(file_url, "fileURLWithPath:")                                                    \
  X(array, "arrayWithObject:")                                                       \
  X(new_archive, "newBinaryArchiveWithDescriptor:error:")                            \
  X(add_functions, "addComputePipelineFunctionsWithDescriptor:error:")               \
  X(serialize, "serializeToURL:error:")                                              \
  X(new_pipeline, "newComputePipelineStateWithDescriptor:options:reflection:error:") \
  X(max_threads, "maxTotalThreadsPerThreadgroup")                                    \
  X(commands, "commandBuffer")                                                       \
  X(compute, "computeCommandEncoderWithDispatchType:")                               \
  X(blit, "blitCommandEncoder")                                                      \
  X(set_pipeline, "setComputePipelineState:")                                        \
  X(set_buffer, "setBuffer:offset:atIndex:")                                         \
  X(set_bytes, "setBytes:length:atIndex:")                                           \
  X(barrier, "memoryBarrierWithScope:")                                              \
  X(dispatch, "dispatchThreadgroups:threadsPerThreadgroup:")                         \
  X(copy, "copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:")            \
  X(end, "endEncoding")                                                              \
  X(commit, "commit")                                                                \
  X(wait, "waitUntilCompleted")                                                      \
  X(status, "status")                                                                \
  X(error, "error")

/*! What is looked up in the system. */
struct System {
  Id (*get_class)(const char*) = nullptr;
  Selector (*register_name)(const char*) = nullptr;
  void (*send)() = nullptr;  // objc_msgSend, which is called as the method that it reaches
  void* (*push_pool)() = nullptr;
  void (*pop_pool)(void*) = nullptr;
  Id (*create_device)() = nullptr;
#define GEMMA4_SELECTOR(name, text) Selector name = nullptr;
  GEMMA4_SELECTORS(GEMMA4_SELECTOR)
#undef GEMMA4_SELECTOR
};

extern System objc;

/*! Look everything up; the name of what there is not, or null. */
const char* FindSystem();

/*! The number of the system's version before the first period, 0 where it does not tell. */
int MacosVersion();

/*! Whether a device has tensor operations in units of its own, by its families and macOS. */
bool HasTensors(Id device);

/*! Send a message. Its types have to be those of the method. */
template <typename Result = Id, typename... Args>
Result Send(Id object, Selector selector, Args... args) {
  using Method = Result (*)(Id, Selector, Args...);
  return reinterpret_cast<Method>(objc.send)(object, selector, args...);
}

/*! Frees, when it ends, what methods returned that do not hand over ownership. */
class Pool {
 public:
  Pool() : pool_(objc.push_pool()) {}
  ~Pool() { objc.pop_pool(pool_); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

 private:
  void* pool_;
};

/*! An object that is released at the end. */
class Owned {
 public:
  explicit Owned(Id object = nullptr) : object_(object) {}
  ~Owned() { Reset(); }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  Id get() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }
  void Reset(Id object = nullptr) {
    if (object_ != nullptr) Send<void>(object_, objc.release);
    object_ = object;
  }

 private:
  Id object_;
};

/*! An NSString; the pool owns it. */
inline Id String(const char* text) { return Send(objc.get_class("NSString"), objc.string, text); }

/*! An NSURL of a file; the pool owns it. */
inline Id FileUrl(const char* path) {
  return Send(objc.get_class("NSURL"), objc.file_url, String(path));
}

/*! A string's text, right until the pool ends; "" of nil. */
inline const char* Text(Id string) {
  const char* text = string == nullptr ? nullptr : Send<const char*>(string, objc.utf8);
  return text == nullptr ? "" : text;
}

/*! A new object of a class, which the caller owns. */
inline Id New(const char* name) { return Send(Send(objc.get_class(name), objc.alloc), objc.init); }

}  // namespace gemma4_metal

#endif  // GEMMA4_COMPILE_METAL_OBJC_H_
