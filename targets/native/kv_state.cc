#include "kv_state.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace gemma4_compile {

namespace {

constexpr DLDataType kInt32{kDLInt, 32, 1};
constexpr DLDataType kFloat32{kDLFloat, 32, 1};
/*! So many positions' rotary values are kept. */
constexpr int64_t kFirstPositions = 2048;
constexpr int64_t kMaxPosition = std::numeric_limits<int32_t>::max();

ffi::Tensor AllocateTensor(const ffi::Shape& shape, DLDataType dtype, DLDevice device) {
  try {
    return CallRuntime("runtime.TVMTensorAllocWithScope", shape, dtype, device, nullptr)
        .cast<ffi::Tensor>();
  } catch (const ffi::Error& error) {
    TVM_FFI_THROW(RuntimeError) << "cannot allocate " << ffi::GetDataSize(shape.Product(), dtype)
                                << " bytes for keys and values: " << error.message();
  }
  TVM_FFI_UNREACHABLE();
}

/*! Copy the first `shape` elements of a tensor from host memory. */
void Upload(const void* host, const ffi::Shape& shape, const ffi::Tensor& to,
            int64_t byte_offset = 0) {
  int64_t* extents = const_cast<int64_t*>(shape.data());
  const int ndim = static_cast<int>(shape.size());
  DLTensor source{
      const_cast<void*>(host), DLDevice{kDLCPU, 0}, ndim, to.dtype(), extents, nullptr, 0};
  DLTensor target = *to.GetDLTensorPtr();
  target.ndim = ndim;
  target.shape = extents;
  target.strides = nullptr;
  target.byte_offset += byte_offset;
  CallRuntime("runtime.TVMTensorCopyFromTo", &source, &target);
}

/*! Fill with zeros: masked keys are multiplied by zero, and garbage may be NaN. */
void FillWithZeros(const ffi::Tensor& tensor) {
  const DLTensor* t = tensor.GetDLTensorPtr();
  if (t->device.device_type == kDLWebGPU) return;  // its buffers are made of zeros
  const int64_t element_bytes = t->dtype.bits / 8;
  const int64_t row_bytes = t->shape[1] * t->shape[2] * element_bytes;
  const int64_t step = std::max<int64_t>(1, (int64_t{1} << 20) / row_bytes);
  const std::vector<char> zeros(static_cast<size_t>(step * row_bytes), 0);
  for (int64_t row = 0; row < t->shape[0]; row += step) {
    const int64_t count = std::min(step, t->shape[0] - row);
    Upload(zeros.data(), ffi::Shape({count, t->shape[1], t->shape[2]}), tensor, row * row_bytes);
  }
}

/*! Inverse frequencies of all rotary kinds, one kind after the other. */
std::vector<float> InverseFrequencies(const ffi::Shape& rotary) {
  GEMMA4_REQUIRE(rotary.size() % 3 == 0, ValueError)
      << "rotary description: expected 3 numbers per kind, found " << rotary.size() << " numbers";
  std::vector<float> result;
  for (size_t i = 0; i < rotary.size(); i += 3) {
    const int64_t head_dim = rotary[i], pairs = rotary[i + 1], theta_bits = rotary[i + 2];
    double theta;
    std::memcpy(&theta, &theta_bits, sizeof(theta));
    GEMMA4_REQUIRE(head_dim > 0 && pairs >= 0 && 2 * pairs <= head_dim && theta > 0, ValueError)
        << "rotary kind " << i / 3 << ": head_dim " << head_dim << ", pairs " << pairs << ", theta "
        << theta;
    for (int64_t j = 0; j < pairs; ++j) {
      const double exponent = static_cast<double>(2 * j) / static_cast<double>(head_dim);
      result.push_back(static_cast<float>(1.0 / std::pow(theta, exponent)));
    }
  }
  return result;
}

}  // namespace

Gemma4KVStateObj::Gemma4KVStateObj(int64_t capacity, int64_t chunk, const ffi::Shape& layout,
                                   const ffi::Shape& rotary, DLDataType dtype, DLDevice device,
                                   std::string package)
    : capacity_(capacity),
      chunk_(chunk),
      dtype_(dtype),
      package_(std::move(package)),
      inverse_frequencies_(InverseFrequencies(rotary)) {
  GEMMA4_REQUIRE(1 <= capacity && capacity <= kMaxPosition, ValueError)
      << "context length: expected 1 to " << kMaxPosition << ", found " << capacity;
  GEMMA4_REQUIRE(1 <= chunk && chunk <= kMaxPosition, ValueError)
      << "prefill chunk: expected at least 1 token, found " << chunk;
  GEMMA4_REQUIRE(layout.size() % 4 == 0, ValueError)
      << "cache layout: expected 4 numbers per layer, found " << layout.size() << " numbers";
  for (size_t i = 0; i < layout.size(); i += 4) {
    const int64_t heads = layout[i], head_dim = layout[i + 1], window = layout[i + 3];
    const int64_t rows = layout[i + 2] == 0 ? capacity : layout[i + 2];
    GEMMA4_REQUIRE(heads > 0 && head_dim > 0 && rows > 0 && window >= 0, ValueError)
        << "cache of layer slot " << i / 4 << ": " << heads << " heads, head_dim " << head_dim
        << ", " << rows << " rows, window " << window;
    const bool is_ring = layout[i + 2] != 0;
    GEMMA4_REQUIRE(!is_ring || window > 0, ValueError)
        << "cache of layer slot " << i / 4 << ": a ring needs a window";
    GEMMA4_REQUIRE(!is_ring || rows - window + 1 >= chunk, ValueError)
        << "prefill chunk: this library takes at most " << rows - window + 1
        << " tokens, asked for " << chunk;
    const ffi::Shape shape({rows, heads, head_dim});
    LayerCache layer{rows, window, AllocateTensor(shape, dtype, device),
                     AllocateTensor(shape, dtype, device)};
    FillWithZeros(layer.key);
    FillWithZeros(layer.value);
    layers_.push_back(std::move(layer));
  }
  const int64_t pairs = rotary_pairs();
  positions_ = AllocateTensor(ffi::Shape({4}), kInt32, device);
  rotary_ = AllocateTensor(ffi::Shape({chunk, pairs, 2}), kFloat32, device);
  // The kernels of a prompt of 1,000 tokens wait for 200,000 sines and cosines, which cost a browser a
  // tenth of the time to the first token. Those of a conversation's begin are computed before it.
  const int64_t rows = std::min(kFirstPositions, capacity);
  std::vector<float> values(static_cast<size_t>(rows * pairs * 2));
  for (int64_t row = 0; row < rows; ++row) RotaryValues(row, values.data() + row * pairs * 2);
  first_rotary_ = std::move(values);
}

// --- Sequence ---

void Gemma4KVStateObj::Clear() {
  has_sequence_ = false;
  Restart();
}

void Gemma4KVStateObj::AddSequence(int64_t id) {
  GEMMA4_REQUIRE(!has_sequence_, ValueError)
      << "this state holds one sequence: remove sequence " << sequence_ << " before adding " << id;
  has_sequence_ = true;
  sequence_ = id;
  Restart();
}

void Gemma4KVStateObj::RemoveSequence(int64_t id) {
  CheckSequence(id);
  Clear();
}

void Gemma4KVStateObj::ForkSequence(int64_t, int64_t, int64_t) {
  TVM_FFI_THROW(NotImplementedError) << "this state holds one sequence and cannot fork it";
}

void Gemma4KVStateObj::PopN(int64_t id, int32_t count) {
  CheckSequence(id);
  Pop(count);
}

void Gemma4KVStateObj::Pop(int64_t count) {
  GEMMA4_REQUIRE(pending_ == 0, RuntimeError) << "pop_n between begin_forward and end_forward";
  GEMMA4_REQUIRE(0 <= count && count <= length_, ValueError)
      << "cannot pop " << count << " tokens from a sequence of " << length_;
  const int64_t shortest = ShortestLengthHeld();
  const int64_t left = length_ - count;
  GEMMA4_REQUIRE(left == 0 || left >= shortest, ValueError)
      << "cannot pop " << count << " of " << length_
      << " tokens: the sliding layers have overwritten what the tokens before them attend to; "
         "pop at most "
      << std::max<int64_t>(0, length_ - shortest) << ", or all " << length_;
  length_ = left;
  if (length_ == 0) written_ = 0;
  ++version_;
}

// --- Forward ---

void Gemma4KVStateObj::BeginForward(const ffi::Shape& ids, const ffi::Shape& counts,
                                    const ffi::Optional<ffi::Shape>& tree) {
  GEMMA4_REQUIRE(ids.size() == 1 && counts.size() == 1, ValueError)
      << "begin_forward: expected 1 sequence and 1 length, found " << ids.size() << " and "
      << counts.size();
  GEMMA4_REQUIRE(!tree.has_value(), NotImplementedError)
      << "begin_forward: token trees are not supported";
  CheckSequence(ids[0]);
  Begin(counts[0]);
}

void Gemma4KVStateObj::Begin(int64_t count) {
  GEMMA4_REQUIRE(has_sequence_, RuntimeError) << "begin_forward: add a sequence first";
  GEMMA4_REQUIRE(pending_ == 0, RuntimeError) << "begin_forward: the forward before has not ended";
  GEMMA4_REQUIRE(!import_, RuntimeError)
      << "begin_forward: a checkpoint is being imported: finish that, or clear the state";
  GEMMA4_REQUIRE(1 <= count && count <= chunk_, ValueError)
      << "begin_forward: expected 1 to " << chunk_ << " tokens, found " << count;
  GEMMA4_REQUIRE(length_ + count <= capacity_, ValueError)
      << "the context is full: it holds " << length_ << " of " << capacity_ << " tokens, " << count
      << " more were asked for";
  const std::array<int32_t, 4> host_positions = PositionValues(length_, count);
  Upload(host_positions.data(), ffi::Shape({4}), positions_);
  UploadRotary(count);
  NoteWritten(length_ + count);
  pending_ = count;
  ++version_;
}

void Gemma4KVStateObj::EndForward() {
  GEMMA4_REQUIRE(pending_ > 0, RuntimeError) << "end_forward without begin_forward";
  length_ += pending_;
  pending_ = 0;
}

// --- What kernels read and write ---

const LayerCache& Gemma4KVStateObj::Layer(int64_t slot) const {
  GEMMA4_REQUIRE(0 <= slot && slot < static_cast<int64_t>(layers_.size()), IndexError)
      << "layer slot: expected 0 to " << static_cast<int64_t>(layers_.size()) - 1 << ", found "
      << slot;
  return layers_[static_cast<size_t>(slot)];
}

// --- For a caller that runs steps by itself ---

std::array<int32_t, 4> Gemma4KVStateObj::PositionValues(int64_t first, int64_t count) {
  return {static_cast<int32_t>(first), static_cast<int32_t>(count),
          static_cast<int32_t>(first + count), 0};
}

void Gemma4KVStateObj::RotaryValues(int64_t position, float* row) const {
  const auto width = inverse_frequencies_.size() * 2, first = static_cast<size_t>(position) * width;
  if (position >= 0 && first + width <= first_rotary_.size()) {
    std::copy_n(first_rotary_.data() + first, width, row);
    return;
  }
  for (const float frequency : inverse_frequencies_) {
    const float angle = static_cast<float>(position) * frequency;
    *row++ = static_cast<float>(std::cos(static_cast<double>(angle)));
    *row++ = static_cast<float>(std::sin(static_cast<double>(angle)));
  }
}

int64_t Gemma4KVStateObj::Room() const {
  int64_t room = capacity_ - length_;
  for (const LayerCache& layer : layers_) {
    // A layer with a row for every position of the context never wraps.
    if (layer.rows < capacity_) room = std::min(room, layer.rows - layer.window + 1);
  }
  return room;
}

void Gemma4KVStateObj::NoteWritten(int64_t length) { written_ = std::max(written_, length); }

// --- For checkpoints ---

void Gemma4KVStateObj::PrepareImport(int64_t id, int64_t length, int64_t written, size_t groups) {
  Restart();
  has_sequence_ = true;
  sequence_ = id;
  import_ = Import{length, written, std::vector<bool>(groups, false)};
}

void Gemma4KVStateObj::NoteImported(size_t group) {
  import_->done[group] = true;
  ++version_;
}

void Gemma4KVStateObj::FinishImport() {
  length_ = import_->length;
  written_ = import_->written;
  import_.reset();
  ++version_;
}

// --- Within ---

void Gemma4KVStateObj::Restart() {
  length_ = written_ = pending_ = 0;
  import_.reset();
  ++version_;
}

void Gemma4KVStateObj::CheckSequence(int64_t id) const {
  GEMMA4_REQUIRE(has_sequence_ && id == sequence_, ValueError)
      << "there is no sequence " << id << " in this state";
}

/*!
 * The fewest tokens, besides none, that can be left without losing a key that the next one
 * attends to.
 *
 * A ring holds the positions from written - rows on (later ones overwrote the others), and the
 * token at position n attends to n - window + 1 and later.
 */
int64_t Gemma4KVStateObj::ShortestLengthHeld() const {
  int64_t shortest = 0;
  for (const LayerCache& layer : layers_) {
    if (layer.window > 1 && written_ > layer.rows) {
      shortest = std::max(shortest, written_ - layer.rows + layer.window - 1);
    }
  }
  return shortest;
}

void Gemma4KVStateObj::UploadRotary(int64_t count) {
  const int64_t pairs = rotary_pairs();
  if (pairs == 0) return;
  host_rotary_.resize(static_cast<size_t>(count * pairs * 2));
  for (int64_t row = 0; row < count; ++row) {
    RotaryValues(length_ + row, host_rotary_.data() + row * pairs * 2);
  }
  Upload(host_rotary_.data(), ffi::Shape({count, pairs, 2}), rotary_);
}

}  // namespace gemma4_compile
