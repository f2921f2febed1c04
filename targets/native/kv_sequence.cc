#include "kv_sequence.h"

#include <algorithm>

namespace gemma4_compile {

void Sequence::Restart() {
  length = written = pending = floor = 0;
  import.reset();
}

void Sequence::Pop(int64_t count) {
  GEMMA4_REQUIRE(pending == 0, RuntimeError) << "pop_n between begin_forward and end_forward";
  GEMMA4_REQUIRE(0 <= count && count <= length, ValueError)
      << "cannot pop " << count << " tokens from a sequence of " << length;
  const int64_t shortest = ShortestLengthHeld();
  const int64_t left = length - count;
  GEMMA4_REQUIRE(left == 0 || left >= shortest, ValueError)
      << "cannot pop " << count << " of " << length
      << " tokens: the sliding layers have overwritten what the tokens before them attend to; "
         "pop at most "
      << std::max<int64_t>(0, length - shortest) << ", or all " << length;
  length = left;
  if (length == 0) written = floor = 0;
}

void Sequence::CopyFrom(const Sequence& parent, int64_t position) {
  GEMMA4_REQUIRE(parent.pending == 0, RuntimeError)
      << "fork_sequence between begin_forward and end_forward of sequence " << *parent.id;
  GEMMA4_REQUIRE(!parent.import, RuntimeError)
      << "fork_sequence: a checkpoint is being imported into sequence " << *parent.id;
  GEMMA4_REQUIRE(0 <= position && position <= parent.length, ValueError)
      << "cannot fork a sequence of " << parent.length << " tokens after " << position;
  const int64_t shortest = parent.ShortestLengthHeld();
  GEMMA4_REQUIRE(position == 0 || position >= shortest, ValueError)
      << "cannot fork a sequence of " << parent.length << " tokens after " << position
      << ": the sliding layers have overwritten what the next token attends to; fork after "
      << shortest << " to " << parent.length << ", or after none";
  Restart();
  length = position;
  written = position == 0 ? 0 : parent.written;
  floor = position == 0 ? 0 : parent.floor;
  for (size_t index = 0; index < layers.size(); ++index) {
    const LayerCache &from = parent.layers[index], &to = layers[index];
    const int64_t rows = LiveRows(from, length, written);
    if (rows == 0) continue;
    const ffi::Shape shape({rows, from.key.shape()[1], from.key.shape()[2]});
    CopyRows(from.key, 0, to.key, 0, shape);
    CopyRows(from.value, 0, to.value, 0, shape);
  }
}

void Sequence::Resume(int64_t tokens, int64_t shortest) {
  GEMMA4_REQUIRE(length == 0 && pending == 0 && !import, RuntimeError)
      << "resume: the sequence has " << length + pending << " tokens, or is being imported";
  GEMMA4_REQUIRE(0 <= shortest && shortest <= tokens, ValueError)
      << "resume: expected a shortest length of 0 to " << tokens << ", found " << shortest;
  length = written = tokens;
  floor = shortest;
}

/*!
 * A ring holds the positions from written - rows on (later ones overwrote the others), and the
 * token at position n attends to n - window + 1 and later.
 */
int64_t Sequence::ShortestLengthHeld() const {
  int64_t shortest = floor;
  for (const LayerCache& layer : layers) {
    if (layer.window > 1 && written > layer.rows) {
      shortest = std::max(shortest, written - layer.rows + layer.window - 1);
    }
  }
  return shortest;
}

int64_t LiveRows(const LayerCache& layer, int64_t length, int64_t written) {
  if (layer.window > 0) return written > layer.rows ? layer.rows : length;
  return std::clamp<int64_t>(length - layer.first, 0, layer.rows);
}

void CopyRows(const ffi::Tensor& from, int64_t from_byte, const ffi::Tensor& to, int64_t to_byte,
              const ffi::Shape& shape) {
  DLTensor source = *from.GetDLTensorPtr(), target = *to.GetDLTensorPtr();
  source.byte_offset += static_cast<uint64_t>(from_byte);
  target.byte_offset += static_cast<uint64_t>(to_byte);
  for (DLTensor* view : {&source, &target}) {
    view->ndim = static_cast<int32_t>(shape.size());
    view->shape = const_cast<int64_t*>(shape.data());
    view->strides = nullptr;
  }
  CallRuntime("runtime.TVMTensorCopyFromTo", &source, &target);
}

}  // namespace gemma4_compile
