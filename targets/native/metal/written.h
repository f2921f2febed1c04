/*!
 * Which of its buffers a kernel may write, by its text.
 */
#ifndef GEMMA4_COMPILE_METAL_WRITTEN_H_
#define GEMMA4_COMPILE_METAL_WRITTEN_H_

#include <cstddef>
#include <cstdint>

namespace gemma4_metal {

/*!
 * The buffers that a kernel may write, as bits by index; the first `count` are asked for.
 *
 * A buffer is only read where each place of the text that names it reads one element: the pointer
 * under an index, or cast and dereferenced, and not followed by an assignment. Any other place,
 * such as one that hands the pointer on, counts as one that writes.
 */
uint32_t WrittenBuffers(const char* source, size_t count);

/*! Whether a kernel's text has tensor operations, which targets/metal_tensors.py writes. */
bool NeedsTensors(const char* source);

}  // namespace gemma4_metal

#endif  // GEMMA4_COMPILE_METAL_WRITTEN_H_
