/*!
 * Rows of a sequence, copied to the host's memory and back: what a prefix that is kept is made of. In
 * native libraries alone; a browser's has checkpoints (kv_checkpoint.cc), which take a sequence whole.
 *
 * Who keeps a prefix reads the rows of its positions, and of sliding layers only those that the
 * tokens after it attend to. Rows are written into a sequence without tokens; it has its length
 * only when all have come, so that a copy which is interrupted leaves it empty.
 */
#include <algorithm>

#include "kv_state.h"

namespace gemma4_compile {

namespace {

Gemma4KVStateObj& Of(const KVState& state) {
  const auto* self = state.as<Gemma4KVStateObj>();
  GEMMA4_REQUIRE(self != nullptr, TypeError) << "expected a gemma4_compile.KVState";
  return const_cast<Gemma4KVStateObj&>(*self);
}

/*! Five numbers of each entry: its first position, rows, window (0: none), heads and head_dim. */
ffi::Shape RowLayout(KVState state) {
  std::vector<int64_t> numbers;
  for (const LayerCache& layer : Of(state).layers()) {
    const ffi::Shape shape = layer.key.shape();
    for (const int64_t number : {layer.first, layer.rows, layer.window, shape[1], shape[2]}) {
      numbers.push_back(number);
    }
  }
  return ffi::Shape(numbers);
}

int64_t ShortestLength(KVState state, int64_t id) {
  return Of(state).Required(id).ShortestLengthHeld();
}

/*! The sequence and the entry of a copy, where both are there and nothing runs. */
struct Place {
  Sequence& sequence;
  const LayerCache& layer;
};

Place Find(const KVState& state, int64_t id, int64_t entry, const ffi::Tensor& tensor) {
  Gemma4KVStateObj& self = Of(state);
  Sequence& sequence = self.Required(id);
  GEMMA4_REQUIRE(sequence.pending == 0 && !sequence.import, RuntimeError)
      << "rows of sequence " << id << ": a forward or an import of it has not ended";
  const auto count = static_cast<int64_t>(sequence.layers.size());
  GEMMA4_REQUIRE(0 <= entry && entry < count, IndexError)
      << "rows: expected entry 0 to " << count - 1 << ", found " << entry;
  const LayerCache& layer = sequence.layers[static_cast<size_t>(entry)];
  const ffi::Shape shape = layer.key.shape();
  const DLDataType dtype = tensor.dtype();
  GEMMA4_REQUIRE(tensor.ndim() == 4 && tensor.shape()[0] == 2 && tensor.shape()[1] > 0 &&
                     tensor.shape()[2] == shape[1] && tensor.shape()[3] == shape[2] &&
                     dtype.code == self.dtype().code && dtype.bits == self.dtype().bits &&
                     dtype.lanes == 1 && tensor.IsContiguous(),
                 ValueError)
      << "rows of entry " << entry << ": expected a tensor of shape (2, n, " << shape[1] << ", "
      << shape[2] << "), float" << static_cast<int>(self.dtype().bits);
  return Place{sequence, layer};
}

/*! Copy the rows of consecutive positions; a ring's end is followed by its beginning. */
void Copy(const LayerCache& layer, int64_t position, const ffi::Tensor& tensor, bool is_write) {
  const ffi::Shape shape = layer.key.shape();
  const int64_t row_bytes = shape[1] * shape[2] * layer.key.dtype().bits / 8;
  const int64_t count = tensor.shape()[1];
  for (int64_t done = 0; done < count;) {
    const int64_t row = (position + done - layer.first) % layer.rows;
    const int64_t rows = std::min(count - done, layer.rows - row);
    const ffi::Shape part({rows, shape[1], shape[2]});
    for (int64_t half = 0; half < 2; ++half) {
      const ffi::Tensor& own = half == 0 ? layer.key : layer.value;
      const int64_t own_byte = row * row_bytes, byte = (half * count + done) * row_bytes;
      if (is_write) {
        CopyRows(tensor, byte, own, own_byte, part);
      } else {
        CopyRows(own, own_byte, tensor, byte, part);
      }
    }
    done += rows;
  }
}

/*! Copy the rows of as many positions as the tensor (2, n, heads, head_dim) has, keys first. */
void ReadRows(KVState state, int64_t id, int64_t entry, int64_t position, ffi::Tensor tensor) {
  const Place place = Find(state, id, entry, tensor);
  const LayerCache& layer = place.layer;
  const int64_t written = place.sequence.written;
  const int64_t first = layer.window > 0 ? std::max<int64_t>(0, written - layer.rows) : layer.first;
  const int64_t last = layer.window > 0 ? place.sequence.length
                                        : std::min(place.sequence.length, layer.first + layer.rows);
  GEMMA4_REQUIRE(first <= position && position + tensor.shape()[1] <= last, ValueError)
      << "rows of entry " << entry << ": it holds positions " << first << " to before " << last
      << ", asked for " << tensor.shape()[1] << " from " << position << " on";
  Copy(layer, position, tensor, false);
}

void WriteRows(KVState state, int64_t id, int64_t entry, int64_t position, ffi::Tensor tensor) {
  const Place place = Find(state, id, entry, tensor);
  const LayerCache& layer = place.layer;
  const int64_t count = tensor.shape()[1], capacity = Of(state).capacity();
  GEMMA4_REQUIRE(place.sequence.length == 0, ValueError)
      << "rows are written into a sequence without tokens, and this one has "
      << place.sequence.length;
  const int64_t last = layer.window > 0 ? capacity : std::min(capacity, layer.first + layer.rows);
  GEMMA4_REQUIRE(count <= layer.rows && layer.first <= position && position <= last - count,
                 ValueError)
      << "rows of entry " << entry << ": it has " << layer.rows << " from position " << layer.first
      << " to before " << last << ", given " << count << " from " << position << " on";
  Copy(layer, position, tensor, true);
}

void Resume(KVState state, int64_t id, int64_t length, int64_t shortest) {
  Of(state).Resume(id, length, shortest);
}

}  // namespace

GEMMA4_FUNCTION(gemma4_kv_row_layout, RowLayout)
GEMMA4_FUNCTION(gemma4_kv_shortest_length, ShortestLength)
GEMMA4_FUNCTION(gemma4_kv_read_rows, ReadRows)
GEMMA4_FUNCTION(gemma4_kv_write_rows, WriteRows)
GEMMA4_FUNCTION(gemma4_kv_resume, Resume)

}  // namespace gemma4_compile
