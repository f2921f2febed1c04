/*!
 * Metal's matrices of simdgroups, after its specification 2.3: 8 x 8, which 32 threads hold together.
 *
 * How they share a matrix is not said there, and so nothing here can be read but by these functions:
 * a matrix has no member that a kernel may name. All threads of a full simdgroup must make a call
 * together, of the same place, pitch and order. Each thread reads its elements of memory before it
 * meets the others and writes them afterwards, so that a barrier that is missing shows in one order
 * of the threads.
 * A matrix that nobody has filled is NaN.
 */
#pragma once

#include <cstring>
#include <type_traits>

namespace metal {

template <typename T, int Columns, int Rows>
class simdgroup_matrix;

/*! What the emulator's functions see of a matrix. */
struct MatrixAccess {
  template <typename T>
  static T* own(simdgroup_matrix<T, 8, 8>& matrix) {
    return matrix.own_;
  }
  template <typename T>
  static const T* own(const simdgroup_matrix<T, 8, 8>& matrix) {
    return matrix.own_;
  }
};

template <typename T, int Columns, int Rows>
class simdgroup_matrix {
  static_assert(std::is_same_v<T, half> || std::is_same_v<T, float>, "half or float");
  static_assert(Columns == 8 && Rows == 8, "the only size");

 public:
  simdgroup_matrix() { std::memset(static_cast<void*>(own_), 0xff, sizeof(own_)); }

 private:
  friend struct MatrixAccess;
  T own_[2];  // of row lane / 4, columns lane % 4 * 2 and the next: the emulator's own choice
};
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;

/*! A ulong2; a number becomes one by itself, as in Metal. */
struct MatrixOrigin {
  ulong x, y;
  MatrixOrigin(ulong both) : x(both), y(both) {}
  MatrixOrigin(const ulong2& at) : x(at.x), y(at.y) {}
};

/*! Where a matrix lies, as each thread gives it. */
struct MatrixPlace {
  const void* first;
  unsigned int pitch;
  unsigned int transposed;
};

inline void meet_at_matrix(MatrixPlace mine, int line) {
  const Simdgroup<MatrixPlace> all(mine, line);
  if (::emulator::lanes() != ::emulator::kSimdWidth) {
    ::emulator::fail("a simdgroup of %u threads has no matrices", ::emulator::lanes());
  }
  const MatrixPlace first = all[0];
  if (first.first != mine.first || first.pitch != mine.pitch ||
      first.transposed != mine.transposed) {
    ::emulator::fail("threads of a simdgroup name different places of a matrix");
  }
}

/*! The address of one of the thread's two elements. */
template <typename T>
T* element_of(T* source, ulong pitch, MatrixOrigin origin, bool transposed, uint index) {
  if (pitch < 8) ::emulator::fail("rows of a matrix that overlap: %lu elements a row", pitch);
  if (::emulator::is_own(source)) ::emulator::fail("a matrix in a thread's own memory");
  const uint row = ::emulator::lane() / 4, column = ::emulator::lane() % 4 * 2 + index;
  const ulong y = (transposed ? column : row) + origin.y;
  const ulong x = (transposed ? row : column) + origin.x;
  T* place = source + y * pitch + x;
  if (reinterpret_cast<size_t>(place) % alignof(T) != 0) ::emulator::fail("a misaligned access");
  ::emulator::check_threadgroup_place(source, place, sizeof(T));
  return place;
}

template <typename T>
void simdgroup_load(simdgroup_matrix<T, 8, 8>& d, const T* source, ulong elements_per_row = 8,
                    MatrixOrigin origin = 0, bool transpose_matrix = false,
                    int line = __builtin_LINE()) {
  for (uint i = 0; i < 2; ++i) {
    const T* place = element_of(source, elements_per_row, origin, transpose_matrix, i);
    std::memcpy(MatrixAccess::own(d) + i, place, sizeof(T));
  }
  meet_at_matrix({source, static_cast<uint>(elements_per_row), transpose_matrix}, line);
}

template <typename T>
void simdgroup_store(const simdgroup_matrix<T, 8, 8>& a, T* to, ulong elements_per_row = 8,
                     MatrixOrigin origin = 0, bool transpose_matrix = false,
                     int line = __builtin_LINE()) {
  meet_at_matrix({to, static_cast<uint>(elements_per_row), transpose_matrix}, line);
  for (uint i = 0; i < 2; ++i) {
    T* place = element_of(to, elements_per_row, origin, transpose_matrix, i);
    std::memcpy(static_cast<void*>(place), MatrixAccess::own(a) + i, sizeof(T));
  }
}

template <typename T, int Columns, int Rows>
simdgroup_matrix<T, Columns, Rows> make_filled_simdgroup_matrix(T value,
                                                                int line = __builtin_LINE()) {
  simdgroup_matrix<T, Columns, Rows> filled;
  MatrixAccess::own(filled)[0] = MatrixAccess::own(filled)[1] = value;
  meet_at_matrix({nullptr, 0, 0}, line);
  return filled;
}

/*! d = a b + c, whose sums are of the type of c: operands of halves may have sums of float. */
template <typename T, typename Operand>
void simdgroup_multiply_accumulate(simdgroup_matrix<T, 8, 8>& d,
                                   const simdgroup_matrix<Operand, 8, 8>& a,
                                   const simdgroup_matrix<Operand, 8, 8>& b,
                                   const simdgroup_matrix<T, 8, 8>& c,
                                   int line = __builtin_LINE()) {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, Operand>,
                "no sums in half of floats");
  struct Pair {
    Operand values[2];
  };
  meet_at_matrix({nullptr, 0, 0}, line);
  const uint lane = ::emulator::lane();
  float left[8], right[8][2];
  {
    Pair mine;
    std::memcpy(mine.values, MatrixAccess::own(a), sizeof(mine));
    const Simdgroup<Pair> all(mine, line);
    for (uint k = 0; k < 8; ++k)
      left[k] = static_cast<float>(all[lane / 4 * 4 + k / 2].values[k % 2]);
  }
  {
    Pair mine;
    std::memcpy(mine.values, MatrixAccess::own(b), sizeof(mine));
    const Simdgroup<Pair> all(mine, line);
    for (uint k = 0; k < 8; ++k) {
      for (uint i = 0; i < 2; ++i) {
        right[k][i] = static_cast<float>(all[k * 4 + lane % 4].values[i]);
      }
    }
  }
  for (uint i = 0; i < 2; ++i) {
    float sum = static_cast<float>(MatrixAccess::own(c)[i]);
    for (uint k = 0; k < 8; ++k) sum += left[k] * right[k][i];
    MatrixAccess::own(d)[i] = static_cast<T>(sum);
  }
}

}  // namespace metal
