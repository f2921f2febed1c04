/*!
 * Included before everything in wasm builds: libc++ for wasm32-wasi comes without threads, and so
 * without the types that TVM's sources guard their state with. A library has one thread, which
 * never waits.
 */
#pragma once

#include <chrono>
#include <mutex>
#include <thread>

namespace std {
inline namespace single_thread {

struct mutex {
  void lock() {}
  bool try_lock() { return true; }
  void unlock() {}
};

struct recursive_mutex : mutex {};

struct shared_mutex : mutex {
  void lock_shared() {}
  void unlock_shared() {}
};

template <class... Mutexes>
struct scoped_lock {
  explicit scoped_lock(Mutexes&...) {}
};

namespace this_thread {

template <class Duration>
void sleep_for(const Duration&) {}

}  // namespace this_thread
}  // namespace single_thread
}  // namespace std
