/*!
 * Rows of a sequence, copied to the host's memory and back: what a prefix that is kept is made of. In
 * native libraries alone; a browser's has checkpoints (kv_checkpoint.cc), which take a sequence whole.
 *
 * Who keeps a prefix reads the rows of its positions, and of sliding layers only those that the
 * tokens after it attend to. Rows are written into a sequence without tokens; it has its length
 * only when all have come or are on their way, so that a copy which is interrupted leaves it empty.
 */
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

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

Place Find(const KVState& state, int64_t id, int64_t entry) {
  Gemma4KVStateObj& self = Of(state);
  Sequence& sequence = self.Required(id);
  GEMMA4_REQUIRE(sequence.pending == 0 && !sequence.import, RuntimeError)
      << "rows of sequence " << id << ": a forward or an import of it has not ended";
  const auto count = static_cast<int64_t>(sequence.layers.size());
  GEMMA4_REQUIRE(0 <= entry && entry < count, IndexError)
      << "rows: expected entry 0 to " << count - 1 << ", found " << entry;
  return Place{sequence, sequence.layers[static_cast<size_t>(entry)]};
}

Place Find(const KVState& state, int64_t id, int64_t entry, const ffi::Tensor& tensor) {
  const Place place = Find(state, id, entry);
  const Gemma4KVStateObj& self = Of(state);
  const ffi::Shape shape = place.layer.key.shape();
  const DLDataType dtype = tensor.dtype();
  GEMMA4_REQUIRE(tensor.ndim() == 4 && tensor.shape()[0] == 2 && tensor.shape()[1] > 0 &&
                     tensor.shape()[2] == shape[1] && tensor.shape()[3] == shape[2] &&
                     dtype.code == self.dtype().code && dtype.bits == self.dtype().bits &&
                     dtype.lanes == 1 && tensor.IsContiguous(),
                 ValueError)
      << "rows of entry " << entry << ": expected a tensor of shape (2, n, " << shape[1] << ", "
      << shape[2] << "), float" << static_cast<int>(self.dtype().bits);
  return place;
}

/*! Rows of consecutive positions that lie side by side in an entry. */
struct Span {
  int64_t row;   // in the entry
  int64_t done;  // those before it
  int64_t count;
};

/*! A ring's end is followed by its beginning. */
std::vector<Span> Spans(const LayerCache& layer, int64_t position, int64_t count) {
  std::vector<Span> spans;
  for (int64_t done = 0; done < count; done += spans.back().count) {
    const int64_t row = (position + done - layer.first) % layer.rows;
    spans.push_back({row, done, std::min(count - done, layer.rows - row)});
  }
  return spans;
}

int64_t RowBytes(const LayerCache& layer) {
  const ffi::Shape shape = layer.key.shape();
  return shape[1] * shape[2] * layer.key.dtype().bits / 8;
}

/*! Copy the rows of consecutive positions. */
void Copy(const LayerCache& layer, int64_t position, const ffi::Tensor& tensor, bool is_write) {
  const ffi::Shape shape = layer.key.shape();
  const int64_t row_bytes = RowBytes(layer), count = tensor.shape()[1];
  for (const Span& span : Spans(layer, position, count)) {
    const ffi::Shape part({span.count, shape[1], shape[2]});
    for (int64_t half = 0; half < 2; ++half) {
      const ffi::Tensor& own = half == 0 ? layer.key : layer.value;
      const int64_t own_byte = span.row * row_bytes;
      const int64_t byte = (half * count + span.done) * row_bytes;
      if (is_write) {
        CopyRows(tensor, byte, own, own_byte, part);
      } else {
        CopyRows(own, own_byte, tensor, byte, part);
      }
    }
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

/*! An error where rows may not be written into a sequence. */
void RequireWritable(const KVState& state, const Place& place, int64_t entry, int64_t position,
                     int64_t count) {
  const LayerCache& layer = place.layer;
  const int64_t capacity = Of(state).capacity();
  GEMMA4_REQUIRE(place.sequence.length == 0, ValueError)
      << "rows are written into a sequence without tokens, and this one has "
      << place.sequence.length;
  const int64_t last = layer.window > 0 ? capacity : std::min(capacity, layer.first + layer.rows);
  GEMMA4_REQUIRE(
      0 < count && count <= layer.rows && layer.first <= position && position <= last - count,
      ValueError)
      << "rows of entry " << entry << ": it has " << layer.rows << " from position " << layer.first
      << " to before " << last << ", given " << count << " from " << position << " on";
}

void WriteRows(KVState state, int64_t id, int64_t entry, int64_t position, ffi::Tensor tensor) {
  const Place place = Find(state, id, entry, tensor);
  RequireWritable(state, place, entry, position, tensor.shape()[1]);
  Copy(place.layer, position, tensor, true);
}

/*! Where such rows lie, for who copies them by itself: addresses of keys and of values and a number of
 * bytes, one after another. */
ffi::Shape RowPlaces(KVState state, int64_t id, int64_t entry, int64_t position, int64_t count) {
  const Place place = Find(state, id, entry);
  RequireWritable(state, place, entry, position, count);
  const int64_t row_bytes = RowBytes(place.layer);
  std::vector<int64_t> numbers;
  for (const Span& span : Spans(place.layer, position, count)) {
    for (const ffi::Tensor& own : {place.layer.key, place.layer.value}) {
      const DLTensor* tensor = own.GetDLTensorPtr();
      const auto begin = reinterpret_cast<intptr_t>(tensor->data);
      numbers.push_back(static_cast<int64_t>(begin) + static_cast<int64_t>(tensor->byte_offset) +
                        span.row * row_bytes);
    }
    numbers.push_back(span.count * row_bytes);
  }
  return ffi::Shape(numbers);
}

/*!
 * Have the forward that has begun wait for rows that are on their way, entry by entry.
 * \param events of CUDA, of each entry; 0 where none are coming
 * \param wait the address of `cudaStreamWaitEvent`
 */
void ExpectRows(KVState state, ffi::Shape events, int64_t wait) {
  ComingRows coming;
  coming.wait = reinterpret_cast<ComingRows::Wait>(static_cast<intptr_t>(wait));
  for (const int64_t event : events) {
    coming.events.push_back(reinterpret_cast<void*>(static_cast<intptr_t>(event)));
  }
  Of(state).ExpectRows(std::move(coming));
}

void Resume(KVState state, int64_t id, int64_t length, int64_t shortest) {
  Of(state).Resume(id, length, shortest);
}

}  // namespace

GEMMA4_FUNCTION(gemma4_kv_row_layout, RowLayout)
GEMMA4_FUNCTION(gemma4_kv_shortest_length, ShortestLength)
GEMMA4_FUNCTION(gemma4_kv_read_rows, ReadRows)
GEMMA4_FUNCTION(gemma4_kv_write_rows, WriteRows)
GEMMA4_FUNCTION(gemma4_kv_row_places, RowPlaces)
GEMMA4_FUNCTION(gemma4_kv_expect_rows, ExpectRows)
GEMMA4_FUNCTION(gemma4_kv_resume, Resume)

}  // namespace gemma4_compile
