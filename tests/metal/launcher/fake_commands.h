/*!
 * Command buffers of the fake: what they are to do, and what they keep alive until it is done.
 */
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "fake_buffer.h"
#include "fake_objc.h"

namespace fake {

constexpr unsigned long kCommitted = 2, kDone = 4, kFailed = 5;  // MTLCommandBufferStatus

struct Queue final : Object {
  Queue() : Object("MTLCommandQueue") {}
  std::vector<struct Commands*> committed;
};

struct Commands final : Object {
  explicit Commands(Queue* queue) : Object("MTLCommandBuffer"), queue(queue) { retain(queue); }
  ~Commands() override {
    if (encoder != nullptr) fault("a command buffer goes with an open encoder");
    release(error);
    release(queue);
  }
  /*! Keep an object until the commands are done. */
  void keep(Object* object) {
    retain(object);
    kept.push_back(object);
  }
  void use(Buffer* buffer, bool writes) {
    keep(buffer);
    uses.emplace_back(buffer, writes);
    ++(writes ? buffer->writers : buffer->readers);
    buffer->protect();
  }
  void run() {
    for (auto& [buffer, writes] : uses) buffer->open();
    for (const auto& operation : operations) {
      const std::string problem = operation();
      if (problem.empty()) continue;
      release(error);
      error = fake::error(problem);
      retain(error);
      break;
    }
    status = error == nullptr ? kDone : kFailed;
    for (auto& [buffer, writes] : uses) --(writes ? buffer->writers : buffer->readers);
    for (auto& [buffer, writes] : uses) buffer->protect();
    for (Object* object : kept) release(object);
    operations.clear();
    kept.clear();
    uses.clear();
  }
  Queue* queue;
  Object* encoder = nullptr;
  unsigned long status = 0;
  Object* error = nullptr;
  std::vector<std::function<std::string()>> operations;
  std::vector<Object*> kept;
  std::vector<std::pair<Buffer*, bool>> uses;
};

}  // namespace fake
