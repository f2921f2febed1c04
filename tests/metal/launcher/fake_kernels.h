/*!
 * Kernels of the fake's GPU, from their source to a pipeline.
 */
#pragma once

#include <set>
#include <string>
#include <utility>

#include "fake_objc.h"
#include "threadgroup.h"

namespace fake {

using Emulate = const char* (*)(const emulator::Launch&);

struct Library final : Object {
  explicit Library(std::string source) : Object("MTLLibrary"), source(std::move(source)) {}
  std::string source;
  void* kernels = nullptr;
};

struct Function final : Object {
  Function() : Object("MTLFunction") {}
  std::string name;
  Emulate emulate = nullptr;
  std::set<unsigned long> parameters;
  std::set<unsigned long> written;  // as far as it has been seen
};

struct CompileOptions final : Object {
  CompileOptions() : Object("MTLCompileOptions") {}
};

struct Description final : Object {
  Description() : Object("MTLComputePipelineDescriptor") {}
  ~Description() override {
    release(function);
    release(archive);
  }
  Object* function = nullptr;
  Object* archive = nullptr;
};

/*! A file of pipelines: a line for this Metal, and one for the name of each function. */
struct Archive final : Object {
  Archive() : Object("MTLBinaryArchive") {}
  std::set<std::string> names;
};

struct ArchiveDescription final : Object {
  ArchiveDescription() : Object("MTLBinaryArchiveDescriptor") {}
  ~ArchiveDescription() override { release(url); }
  Object* url = nullptr;
};

struct Pipeline final : Object {
  explicit Pipeline(Function* function) : Object("MTLComputePipelineState"), function(function) {
    retain(function);
  }
  ~Pipeline() override { release(function); }
  Function* function;
};

}  // namespace fake
