/*!
 * Cosines and sines of rotary angles.
 */
#ifndef GEMMA4_COMPILE_KV_ROTARY_H_
#define GEMMA4_COMPILE_KV_ROTARY_H_

#include <cstddef>

namespace gemma4_compile {

/*!
 * Write cosine and sine of each angle, by turns.
 * \param angles in radians, between -kMostAngle and kMostAngle
 * \param pairs room for 2 * count values
 */
void CosinesAndSines(const float* angles, size_t count, float* pairs);

/*! Larger angles are those of positions that no context has. */
constexpr float kMostAngle = 1 << 20;

}  // namespace gemma4_compile

#endif  // GEMMA4_COMPILE_KV_ROTARY_H_
