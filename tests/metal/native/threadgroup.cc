#include "threadgroup.h"

#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <vector>

namespace emulator {
namespace {

constexpr size_t kStackBytes = 256 * 1024;
#ifndef THREADGROUP_BYTES
#define THREADGROUP_BYTES (32 * 1024)  // what Metal promises
#endif
constexpr size_t kThreadgroupBytes = THREADGROUP_BYTES;
constexpr size_t kGuardBytes = 64;
constexpr size_t kArenaBytes = 4 * kThreadgroupBytes;
constexpr unsigned char kPoison = 0xff;  // a NaN in every float type
constexpr uint32_t kMaxThreads = 1024;

enum class State { kReady, kAtBarrier, kInSimdgroup, kEnded };

struct Fiber {
  ucontext_t start;
  jmp_buf jump;
  char* stack = nullptr;
  bool started = false;
  State state = State::kEnded;
  int line = 0;       // where it waits
  size_t arrays = 0;  // threadgroup arrays that it has declared
  uint32_t turn = 0;  // simdgroup functions that it has called
  size_t calls = 0;   // of the threadgroup's operations
  Index thread{};
};

struct Array {
  size_t offset, bytes;
};

struct Threadgroup {
  std::vector<Fiber> fibers{kMaxThreads};
  std::vector<Array> arrays;
  std::vector<GroupCall> calls;
  size_t used = kArenaBytes;  // of the arena, since the arrays are known
  alignas(64) unsigned char arena[kArenaBytes];
  // Of two calls: lanes may be one call apart.
  alignas(16) char values[2][kMaxThreads * kLaneBytes];
  jmp_buf scheduler;
  Fiber* current = nullptr;
  uint32_t threads = 0;
  const Launch* launch = nullptr;
  Body body = nullptr;
  Index index{};
  bool failed = false;
  char message[512];
};

Threadgroup& group() {
  static thread_local Threadgroup* instance = new Threadgroup;
  return *instance;
}

uint32_t number(const Fiber& fiber) {
  return static_cast<uint32_t>(&fiber - group().fibers.data());
}

void yield() {
  Threadgroup& all = group();
  if (_setjmp(all.current->jump) == 0) _longjmp(all.scheduler, 1);
}

void live() {
  for (;;) {
    Threadgroup& all = group();
    all.body(*all.launch, all.index, all.current->thread);
    all.current->state = State::kEnded;
    yield();
  }
}

void resume(Fiber& fiber) {
  Threadgroup& all = group();
  all.current = &fiber;
  if (_setjmp(all.scheduler) != 0) return;
  if (fiber.started) _longjmp(fiber.jump, 1);
  fiber.started = true;
  if (fiber.stack == nullptr) {
    void* memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    fiber.stack = static_cast<char*>(memory);
  }
  getcontext(&fiber.start);
  fiber.start.uc_stack.ss_sp = fiber.stack;
  fiber.start.uc_stack.ss_size = kStackBytes;
  fiber.start.uc_link = nullptr;
  makecontext(&fiber.start, live, 0);
  setcontext(&fiber.start);
}

/*! Keep the first message. */
void note_list(const char* format, va_list arguments) {
  Threadgroup& all = group();
  if (!all.failed) vsnprintf(all.message, sizeof(all.message), format, arguments);
  all.failed = true;
}

__attribute__((format(printf, 1, 2))) void note(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  note_list(format, arguments);
  va_end(arguments);
}

/*! Let a simdgroup go on if its threads have all arrived in one function. */
bool release_simdgroup(uint32_t begin, uint32_t end) {
  Threadgroup& all = group();
  const Fiber& first = all.fibers[begin];
  for (uint32_t i = begin; i < end; ++i) {
    const Fiber& other = all.fibers[i];
    if (other.state != State::kInSimdgroup || other.line != first.line) return false;
  }
  for (uint32_t i = begin; i < end; ++i) all.fibers[i].state = State::kReady;
  return true;
}

/*! Run a simdgroup as far as it comes without the others. */
void run_simdgroup(uint32_t begin) {
  Threadgroup& all = group();
  const uint32_t end = std::min(begin + kSimdWidth, all.threads);
  do {
    for (uint32_t step = 0; step < end - begin && !all.failed; ++step) {
      Fiber& fiber = all.fibers[all.launch->descending ? end - 1 - step : begin + step];
      if (fiber.state == State::kReady) resume(fiber);
    }
  } while (!all.failed && release_simdgroup(begin, end));
}

/*! Let all threads go on if they have arrived at one barrier. */
bool release_barrier() {
  Threadgroup& all = group();
  const Fiber& first = all.fibers[0];
  for (uint32_t i = 0; i < all.threads; ++i) {
    const Fiber& other = all.fibers[i];
    if (other.state != State::kAtBarrier || other.line != first.line) return false;
  }
  for (uint32_t i = 0; i < all.threads; ++i) all.fibers[i].state = State::kReady;
  return true;
}

bool all_ended() {
  Threadgroup& all = group();
  return std::all_of(all.fibers.begin(), all.fibers.begin() + all.threads,
                     [](const Fiber& fiber) { return fiber.state == State::kEnded; });
}

const char* where(const Fiber& fiber) {
  switch (fiber.state) {
    case State::kAtBarrier:
      return "waits at the barrier of line";
    case State::kInSimdgroup:
      return "waits in the simdgroup function of line";
    default:
      return "has ended; last line";
  }
}

/*! Two threads that will never meet. */
void report_divergence() {
  Threadgroup& all = group();
  const Fiber& one = all.fibers[0];
  for (uint32_t i = 1; i < all.threads; ++i) {
    const Fiber& other = all.fibers[i];
    if (other.state == one.state && other.line == one.line) continue;
    note("threads diverge: thread 0 %s %d, thread %u %s %d", where(one), one.line, i, where(other),
         other.line);
    return;
  }
}

void check_guards() {
  Threadgroup& all = group();
  for (const Array& array : all.arrays) {
    const unsigned char* before = all.arena + array.offset - kGuardBytes;
    const unsigned char* behind = all.arena + array.offset + array.bytes;
    for (size_t i = 0; i < kGuardBytes; ++i) {
      if (before[i] != kPoison || behind[i] != kPoison) {
        note("a threadgroup array of %zu bytes was written outside of its bounds", array.bytes);
        return;
      }
    }
  }
}

void check_calls() {
  Threadgroup& all = group();
  for (uint32_t i = 0; i < all.threads; ++i) {
    if (all.fibers[i].calls == all.calls.size()) continue;
    note("thread %u leaves out an operation of its threadgroup", i);
    return;
  }
}

/*! Turns an access beside device memory, and one that is not aligned, into a message. */
class MemoryGuard {
 public:
  MemoryGuard() {
    struct sigaction action{};
    action.sa_sigaction = [](int signal, siginfo_t* info, void*) {
      const bool has_page = signal == SIGBUS || info->si_code == SI_KERNEL;
      fail(has_page ? "a misaligned access" : "an access outside of a buffer");
    };
    action.sa_flags = SA_SIGINFO | SA_NODEFER;  // the handler does not return
    for (int i = 0; i < 2; ++i) sigaction(kSignals[i], &action, &before_[i]);
  }
  ~MemoryGuard() {
    for (int i = 0; i < 2; ++i) sigaction(kSignals[i], &before_[i], nullptr);
  }

 private:
  static constexpr int kSignals[2] = {SIGSEGV, SIGBUS};
  struct sigaction before_[2];
};

void run_threadgroup() {
  Threadgroup& all = group();
  std::memset(all.arena, kPoison, all.used);
  const Index& block = all.launch->block;
  for (uint32_t i = 0; i < all.threads; ++i) {
    Fiber& fiber = all.fibers[i];
    fiber.thread = {i % block.x, i / block.x % block.y, i / block.x / block.y};
    fiber.state = State::kReady;
    fiber.arrays = 0;
    fiber.line = 0;
    fiber.turn = 0;  // an earlier launch may have had fewer threads
    fiber.calls = 0;
  }
  all.calls.clear();
  while (!all.failed) {
    const uint32_t simdgroups = (all.threads + kSimdWidth - 1) / kSimdWidth;
    for (uint32_t step = 0; step < simdgroups && !all.failed; ++step) {
      run_simdgroup((all.launch->descending ? simdgroups - 1 - step : step) * kSimdWidth);
    }
    if (all.failed || all_ended()) break;
    if (!release_barrier()) report_divergence();
  }
  if (all.failed) return;
  check_guards();
  check_calls();
  all.used = 0;
  for (const Array& array : all.arrays) all.used = array.offset + array.bytes + kGuardBytes;
}

}  // namespace

const char* run(const Launch& launch, Body body) {
  Threadgroup& all = group();
  all.launch = &launch;
  all.body = body;
  all.failed = false;
  all.arrays.clear();
  all.used = kArenaBytes;
  all.threads = launch.block.x * launch.block.y * launch.block.z;
  if (all.threads == 0 || all.threads > kMaxThreads)
    note("%u threads in a threadgroup", all.threads);
  const MemoryGuard guard;
  const Index& grid = launch.grid;
  const uint32_t count = grid.x * grid.y * grid.z;
  for (uint32_t step = 0; step < count && !all.failed; ++step) {
    const uint32_t i = launch.descending ? count - 1 - step : step;
    all.index = {i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y};
    run_threadgroup();
  }
  if (!all.failed) return nullptr;
  for (Fiber& fiber : all.fibers) fiber.started = false;  // where they stopped is of no use
  return all.message;
}

void* threadgroup_array(size_t bytes, size_t alignment) {
  Threadgroup& all = group();
  Fiber& fiber = *all.current;
  const size_t index = fiber.arrays++;
  if (index == all.arrays.size()) {
    size_t total = bytes, begin = kGuardBytes;
    for (const Array& array : all.arrays) {
      total += array.bytes;
      begin = array.offset + array.bytes + kGuardBytes;
    }
    if (total > kThreadgroupBytes) fail("%zu bytes of threadgroup memory", total);
    begin = (begin + 2 * alignment - 1) / (2 * alignment) * (2 * alignment);
    all.arrays.push_back({begin + alignment, bytes});  // aligned as asked for, and no better
  }
  if (all.arrays[index].bytes != bytes) fail("threads declare different threadgroup arrays");
  return all.arena + all.arrays[index].offset;
}

void wait_at_barrier(int line) {
  Fiber& fiber = *group().current;
  fiber.state = State::kAtBarrier;
  fiber.line = line;
  yield();
}

const char* exchange(const void* value, size_t bytes, int line) {
  Threadgroup& all = group();
  Fiber& fiber = *all.current;
  char* values = all.values[fiber.turn++ % 2];
  std::memcpy(values + number(fiber) * kLaneBytes, value, bytes);
  fiber.state = State::kInSimdgroup;
  fiber.line = line;
  yield();
  return values + number(fiber) / kSimdWidth * kSimdWidth * kLaneBytes;
}

uint32_t lane() { return number(*group().current) % kSimdWidth; }

uint32_t lanes() {
  const uint32_t begin = number(*group().current) / kSimdWidth * kSimdWidth;
  return std::min(kSimdWidth, group().threads - begin);
}

uint32_t thread_number() { return number(*group().current); }

void same_call(const GroupCall& call, uint32_t threads) {
  Threadgroup& all = group();
  if (threads != all.threads)
    fail("an operation of %u threads in a threadgroup of %u", threads, all.threads);
  const size_t index = all.current->calls++;
  if (index == all.calls.size()) all.calls.push_back(call);
  const GroupCall& first = all.calls[index];
  if (first.place != call.place || first.inner != call.inner || first.outer != call.outer ||
      first.line != call.line) {
    fail("threads of a threadgroup call different operations");
  }
}

bool is_descending() { return group().launch->descending; }

bool is_own(const void* address) {
  const char* stack = group().current->stack;
  const char* place = static_cast<const char*>(address);
  return place >= stack && place < stack + kStackBytes;
}

void check_threadgroup_place(const void* base, const void* place, size_t bytes) {
  const Threadgroup& all = group();
  const unsigned char* from = static_cast<const unsigned char*>(base);
  const unsigned char* to = static_cast<const unsigned char*>(place);
  if (from < all.arena || from >= all.arena + kArenaBytes) return;  // a buffer's ends are pages
  for (const Array& array : all.arrays) {
    const unsigned char* begin = all.arena + array.offset;
    const unsigned char* end = begin + array.bytes;
    if (from >= begin && from < end && to >= begin && to + bytes <= end) return;
  }
  fail("an index outside of its array");
}

void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  note_list(format, arguments);
  va_end(arguments);
  _longjmp(group().scheduler, 1);
}

}  // namespace emulator

// --- What the compiler's checks of arrays and alignment call ---

extern "C" {
void __ubsan_handle_out_of_bounds_minimal() { emulator::fail("an index outside of its array"); }
void __ubsan_handle_out_of_bounds_minimal_abort() {
  emulator::fail("an index outside of its array");
}
void __ubsan_handle_type_mismatch_minimal() { emulator::fail("a misaligned access"); }
void __ubsan_handle_type_mismatch_minimal_abort() { emulator::fail("a misaligned access"); }
void __ubsan_handle_alignment_assumption_minimal() { emulator::fail("a misaligned access"); }
}
