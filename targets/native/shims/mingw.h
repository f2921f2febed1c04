/*!
 * Included before everything in builds for Windows: zig's C library there has no aligned memory
 * that `free` takes back, which TVM's allocator asks for. It asks only where an object needs more
 * than `malloc` gives, and none here does.
 */
#pragma once

#include <cerrno>
#include <cstddef>

inline int posix_memalign(void**, std::size_t, std::size_t) { return ENOMEM; }
