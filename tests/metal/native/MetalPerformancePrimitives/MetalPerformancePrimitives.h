/*!
 * `matmul2d` of Metal Performance Primitives, after the comments of its header and the specification
 * of Metal's language 4: a product of two tensors, whose sums a cooperative tensor has.
 *
 * Which thread has which sum is not said there: a kernel may set all that it has to one value, and
 * store them. All threads of as many simdgroups as the operation names must call it, in the same
 * order, on the same tensors. Each reads its operands when it comes to the call, and meets nobody: a
 * barrier that is missing shows in one order of the threads. Sums that nobody has set are NaN, and
 * the order in which products are added is another one in each order of the threads.
 */
#pragma once

#include <metal_tensor>

namespace mpp {
namespace tensor_ops {

using metal::TensorAccess;

struct matmul2d_descriptor {
  enum class mode { multiply, multiply_accumulate };
  int m, n, k;
  bool transpose_left, transpose_right, relaxed_precision;
  mode matmul_mode;
  constexpr matmul2d_descriptor(int m, int n, int k = -1, bool transpose_left = false,
                                bool transpose_right = false, bool relaxed_precision = false,
                                mode matmul_mode = mode::multiply)
      : m(m),
        n(n),
        k(k),
        transpose_left(transpose_left),
        transpose_right(transpose_right),
        relaxed_precision(relaxed_precision),
        matmul_mode(matmul_mode) {}
};

/*! Of an m x n matrix what a thread has: the elements of its number, and every `Threads`-th more. */
template <typename T, int M, int N, uint Threads>
class cooperative_tensor {
  static_assert(std::is_same_v<T, float>, "sums are of float32");

 public:
  // One more than there is work for: not every element of a thread's is one of the matrix.
  static constexpr ushort kCapacity = (M * N + Threads - 1) / Threads + 1;
  cooperative_tensor() { std::memset(static_cast<void*>(own_), 0xff, sizeof(own_)); }
  ushort get_capacity() const { return kCapacity; }
  float& operator[](ushort index) {
    if (index >= kCapacity) ::emulator::fail("a cooperative tensor has no element %u", index);
    return own_[index];
  }
  template <typename Target>
  void store(Target& to, int line = __builtin_LINE()) const {
    const auto extents = TensorAccess::extents(to);
    ::emulator::same_call({TensorAccess::first(to), extents.inner, extents.outer, line}, Threads);
    for (ushort i = 0; i < kCapacity; ++i) {
      const int at = element(i);
      if (at < 0) continue;
      float* place = TensorAccess::place(to, at % N, at / N);
      if (place != nullptr) std::memcpy(place, own_ + i, sizeof(float));
    }
  }

 private:
  template <matmul2d_descriptor, typename>
  friend class matmul2d;
  static int element(ushort index) {
    const uint at = ::emulator::thread_number() + index * Threads;
    return at < M * N ? static_cast<int>(at) : -1;
  }
  float own_[kCapacity];
};

template <matmul2d_descriptor Form, typename Scope>
class matmul2d {
  static_assert(Form.m % 16 == 0 || Form.n % 16 == 0,
                "at least one of M and N is a multiple of 16");
  static_assert(Form.k > 0 && Form.k % 16 == 0, "whole steps of channels");
  static constexpr uint kThreads = Scope::count * ::emulator::kSimdWidth;
  using Sums = cooperative_tensor<float, Form.m, Form.n, kThreads>;

 public:
  template <typename Left, typename Right, typename T>
  Sums get_destination_cooperative_tensor() const {
    static_assert(std::is_same_v<T, float>, "sums are of float32");
    static_assert(Left::is_operand && Right::is_operand, "half or float");
    return Sums();
  }
  template <typename Left, typename Right>
  void run(Left& left, Right& right, Sums& sums, int line = __builtin_LINE()) const {
    ::emulator::same_call({TensorAccess::first(left), TensorAccess::extents(left).inner,
                           TensorAccess::extents(left).outer, line},
                          kThreads);
    ::emulator::same_call({TensorAccess::first(right), TensorAccess::extents(right).inner,
                           TensorAccess::extents(right).outer, line},
                          kThreads);
    for (ushort i = 0; i < Sums::kCapacity; ++i) {
      const int at = Sums::element(i);
      if (at < 0) continue;
      const int m = at / Form.n, n = at % Form.n;
      float sum = Form.matmul_mode == matmul2d_descriptor::mode::multiply ? 0.0f : sums.own_[i];
      for (int step = 0; step < Form.k; ++step) {
        const int k = ::emulator::is_descending() ? Form.k - 1 - step : step;
        const float a =
            Form.transpose_left ? TensorAccess::value(left, m, k) : TensorAccess::value(left, k, m);
        const float b = Form.transpose_right ? TensorAccess::value(right, k, n)
                                             : TensorAccess::value(right, n, k);
        sum += a * b;
      }
      sums.own_[i] = sum;
    }
  }
};

}  // namespace tensor_ops
}  // namespace mpp
