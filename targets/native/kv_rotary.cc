/*!
 * A chunk of 512 tokens has 200,000 cosines and sines, which the C library computes one by one. Here
 * a loop without branches computes them, which compilers turn into vector instructions.
 */
#include "kv_rotary.h"

#include <cmath>
#include <cstdint>
#include <cstring>

namespace gemma4_compile {

namespace {

constexpr double kQuartersPerRadian = 0.63661977236758134308;  // 2 / pi
/*! pi / 2 in two parts: 33 bits, of which multiples up to 2^20 are exact, and what is left. */
constexpr double kQuarter = 1.57079632673412561417e+00;
constexpr double kQuarterRest = 6.07710050650619224932e-11;
/*! 1.5 * 2^52: what is added to it is rounded to an integer, in its last bits. */
constexpr double kRounder = 6755399441055744.0;

}  // namespace

void CosinesAndSines(const float* angles, size_t count, float* pairs) {
  for (size_t i = 0; i < count; ++i) {
    const double angle = angles[i], rounded = angle * kQuartersPerRadian + kRounder;
    uint64_t quarters;
    std::memcpy(&quarters, &rounded, sizeof(quarters));
    const double turns = rounded - kRounder;
    const double rest = (angle - turns * kQuarter) - turns * kQuarterRest, z = rest * rest;
    // Taylor's series: up to pi / 4 the first term that is left out is below 2^-53 of the sum.
    const double sine =
        rest +
        rest * z *
            (-1. / 6 +
             z * (1. / 120 +
                  z * (-1. / 5040 + z * (1. / 362880 +
                                         z * (-1. / 39916800 + z * (1. / 6227020800 +
                                                                    z * (-1. / 1307674368000)))))));
    const double cosine =
        1 + z * (-1. / 2 +
                 z * (1. / 24 +
                      z * (-1. / 720 +
                           z * (1. / 40320 +
                                z * (-1. / 3628800 +
                                     z * (1. / 479001600 +
                                          z * (-1. / 87178291200 + z * (1. / 20922789888000))))))));
    const double first = (quarters & 1) != 0 ? sine : cosine;
    const double second = (quarters & 1) != 0 ? cosine : sine;
    pairs[2 * i] = static_cast<float>(((quarters + 1) & 2) != 0 ? -first : first);
    pairs[2 * i + 1] = static_cast<float>((quarters & 2) != 0 ? -second : second);
  }
}

}  // namespace gemma4_compile
