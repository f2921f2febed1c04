/*!
 * Memory of the fake's GPU, which the host has access to as far as no command buffer is in the way.
 */
#pragma once

#include <signal.h>
#include <sys/mman.h>

#include <cstring>
#include <set>

#include "fake_objc.h"

namespace fake {

constexpr size_t kPage = 4096;

inline size_t room = SIZE_MAX;  // bytes that buffers may still take

struct Buffer;

inline std::set<Buffer*>& buffers() {
  static auto* all = new std::set<Buffer*>;
  return *all;
}

struct Buffer final : Object {
  explicit Buffer(size_t length)
      : Object("MTLBuffer"), used((length + kPage - 1) / kPage * kPage), length(length) {
    pages = static_cast<char*>(mmap(nullptr, used + 2 * kPage, PROT_NONE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    data = pages + kPage + used - length;  // a page without access follows
    mprotect(pages + kPage, used, PROT_READ | PROT_WRITE);
    memset(data, 0xff, length);  // NaN, until something is written
    buffers().insert(this);
  }
  ~Buffer() override {
    munmap(pages, used + 2 * kPage);
    room += length;
    buffers().erase(this);
  }
  /*! What the host may do with it. */
  void protect() {
    const int access = writers != 0 ? PROT_NONE : readers != 0 ? PROT_READ : PROT_READ | PROT_WRITE;
    if (access != now) mprotect(pages + kPage, used, access);
    now = access;
  }
  void open() {
    if (now != (PROT_READ | PROT_WRITE)) mprotect(pages + kPage, used, PROT_READ | PROT_WRITE);
    now = PROT_READ | PROT_WRITE;
  }
  size_t used, length;
  char* pages;
  char* data;
  int now = PROT_READ | PROT_WRITE;
  long readers = 0, writers = 0;  // operations of command buffers that are not done
};

inline void on_signal(int, siginfo_t* info, void*) {
  const char* address = static_cast<char*>(info->si_addr);
  for (Buffer* buffer : buffers()) {
    if (address >= buffer->data && address < buffer->data + buffer->length) {
      fault(buffer->writers != 0 ? "the host touches memory that a command buffer has yet to write"
                                 : "the host writes memory that a command buffer has yet to read");
    }
    if (address >= buffer->pages && address < buffer->pages + buffer->used + 2 * kPage)
      fault("the host leaves the memory of a buffer");
  }
  fault("the host touches memory that is nobody's");
}

}  // namespace fake
