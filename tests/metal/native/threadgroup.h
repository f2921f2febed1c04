/*!
 * Runs the threads of a Metal threadgroup as fibers of one CPU thread.
 *
 * A fiber runs until it waits at a barrier or in a simdgroup function, and a simdgroup until all its
 * threads wait at a barrier, so what the threads do between two barriers happens one simdgroup after
 * another, and between two simdgroup functions one thread after another. Running a kernel once in ascending and once in
 * descending order of threads therefore shows every missing barrier between two threads that matters
 * to a result: in one of the two orders the reader runs first.
 */
#pragma once

#include <cstddef>
#include <cstdint>

namespace emulator {

constexpr uint32_t kSimdWidth = 32;

struct Index {
  uint32_t x, y, z;
};

struct Launch {
  void* const* buffers;  // in the order of [[ buffer(i) ]]
  const void* numbers;   // the struct behind them
  Index grid, block;     // threadgroups; threads of one
  bool descending;       // order of the threads between two barriers
};

using Body = void (*)(const Launch& launch, Index threadgroup, Index thread);

/*! Run a whole grid. Returns what is wrong with the kernel, or null. */
const char* run(const Launch& launch, Body body);

// --- Called by kernels ---

/*! The threadgroup's next array: every thread declares the same ones in the same order. */
void* threadgroup_array(size_t bytes, size_t alignment);

/*! Wait for all threads; `line` tells barriers apart. */
void wait_at_barrier(int line);

/*! Put down a value of at most 16 bytes and wait for the simdgroup. Returns the first lane's place;
 * lanes follow at kLaneBytes. Valid until the calling thread's next call. */
constexpr size_t kLaneBytes = 16;
const char* exchange(const void* value, size_t bytes, int line);

/*! Place of the calling thread in its simdgroup, and how many threads that has. */
uint32_t lane();
uint32_t lanes();

/*! Number of the calling thread in its threadgroup. */
uint32_t thread_number();

/*! What an operation of a whole threadgroup is called with. */
struct GroupCall {
  const void* place;
  long inner, outer;
  int line;
};

/*! Fail unless all of so many threads make such calls in the same order, which they may do one after
 * the other: nobody waits. A threadgroup that ends has to have made them all. */
void same_call(const GroupCall& call, uint32_t threads);

/*! Whether the last threads go first. */
bool is_descending();

/*! Whether an address is of the calling thread's own variables. */
bool is_own(const void* address);

/*! Fail if an address beside `base` is outside of the threadgroup array that `base` is in. */
void check_threadgroup_place(const void* base, const void* place, size_t bytes);

/*! End the launch with a message. */
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace emulator
