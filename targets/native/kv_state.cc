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

LayerCache MakeCache(int64_t first, int64_t rows, int64_t window, const ffi::Shape& shape,
                     DLDataType dtype, DLDevice device) {
  LayerCache layer{first, rows, window, AllocateTensor(shape, dtype, device),
                   AllocateTensor(shape, dtype, device)};
  FillWithZeros(layer.key);
  FillWithZeros(layer.value);
  return layer;
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

Gemma4KVStateObj::Gemma4KVStateObj(int64_t max_sequences, int64_t capacity, int64_t chunk,
                                   const ffi::Shape& layout, const ffi::Shape& rotary,
                                   DLDataType dtype, DLDevice device, std::string package)
    : max_sequences_(max_sequences),
      capacity_(capacity),
      chunk_(chunk),
      dtype_(dtype),
      device_(device),
      package_(std::move(package)),
      inverse_frequencies_(InverseFrequencies(rotary)) {
  GEMMA4_REQUIRE(1 <= max_sequences && max_sequences <= kMaxPosition, ValueError)
      << "sequences: expected 1 to " << kMaxPosition << ", found " << max_sequences;
  GEMMA4_REQUIRE(1 <= capacity && capacity <= kMaxPosition, ValueError)
      << "context length: expected 1 to " << kMaxPosition << ", found " << capacity;
  GEMMA4_REQUIRE(1 <= chunk && chunk <= kMaxPosition, ValueError)
      << "prefill chunk: expected at least 1 token, found " << chunk;
  GEMMA4_REQUIRE(layout.size() % 4 == 0, ValueError)
      << "cache layout: expected 4 numbers per layer, found " << layout.size() << " numbers";
  Sequence first;
  int64_t part = 0;  // of a full layer in parts: the next one of it
  for (size_t i = 0; i < layout.size(); i += 4) {
    const int64_t heads = layout[i], head_dim = layout[i + 1], window = layout[i + 3];
    const int64_t parts = layout[i + 2] < 0 ? -layout[i + 2] : 1;
    const int64_t rows = layout[i + 2] > 0 ? layout[i + 2] : (capacity + parts - 1) / parts;
    const bool follows = part > 0 && layout[i + 2] == layout[i - 2];
    GEMMA4_REQUIRE((part == 0 || follows) && (parts == 1 || window == 0), ValueError)
        << "cache of layer slot " << i / 4 << ": expected part " << part
        << " of a layer without a window, found " << parts << " parts, window " << window;
    GEMMA4_REQUIRE(heads > 0 && head_dim > 0 && rows > 0 && window >= 0, ValueError)
        << "cache of layer slot " << i / 4 << ": " << heads << " heads, head_dim " << head_dim
        << ", " << rows << " rows, window " << window;
    const bool is_ring = layout[i + 2] > 0;
    GEMMA4_REQUIRE(!is_ring || window > 0, ValueError)
        << "cache of layer slot " << i / 4 << ": a ring needs a window";
    GEMMA4_REQUIRE(!is_ring || rows - window + 1 >= chunk, ValueError)
        << "prefill chunk: this library takes at most " << rows - window + 1
        << " tokens, asked for " << chunk;
    const ffi::Shape shape({rows, heads, head_dim});
    first.layers.push_back(MakeCache(part * rows, rows, window, shape, dtype, device));
    part = part + 1 < parts ? part + 1 : 0;
  }
  GEMMA4_REQUIRE(part == 0, ValueError)
      << "cache layout: the last layer has " << part << " of its parts";
  slots_.push_back(std::move(first));
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

// --- Sequences ---

void Gemma4KVStateObj::Clear() {
  for (Sequence& sequence : slots_) {
    sequence.id.reset();
    sequence.Restart();
  }
  ++version_;
}

int64_t Gemma4KVStateObj::Add(int64_t id) {
  const size_t slot = FreeSlot(id);
  slots_[slot].id = id;
  slots_[slot].Restart();
  ++version_;
  return static_cast<int64_t>(slot);
}

void Gemma4KVStateObj::RemoveSequence(int64_t id) {
  Sequence& sequence = Required(id);
  sequence.id.reset();
  sequence.Restart();
  ++version_;
}

int64_t Gemma4KVStateObj::Fork(int64_t parent, int64_t child, int64_t position) {
  Required(parent);
  const size_t slot = FreeSlot(child);  // may move the sequences
  const Sequence& from = Required(parent);
  slots_[slot].CopyFrom(from, position == -1 ? from.length : position);
  slots_[slot].id = child;
  ++version_;
  return static_cast<int64_t>(slot);
}

void Gemma4KVStateObj::Pop(int64_t id, int64_t count) {
  Required(id).Pop(count);
  ++version_;
}

void Gemma4KVStateObj::Resume(int64_t id, int64_t length, int64_t shortest) {
  GEMMA4_REQUIRE(0 < length && length <= capacity_, ValueError)
      << "resume: expected 1 to " << capacity_ << " tokens, found " << length;
  Required(id).Resume(length, shortest);
  ++version_;
}

// --- Forward ---

void Gemma4KVStateObj::BeginForward(const ffi::Shape& ids, const ffi::Shape& counts,
                                    const ffi::Optional<ffi::Shape>& tree) {
  GEMMA4_REQUIRE(ids.size() == counts.size(), ValueError)
      << "begin_forward: expected a length for each of " << ids.size() << " sequences, found "
      << counts.size();
  GEMMA4_REQUIRE(ids.size() == 1, NotImplementedError)
      << "begin_forward: the kernels of this library take 1 sequence at a time, found "
      << ids.size() << ": begin and end a forward for each";
  GEMMA4_REQUIRE(!tree.has_value(), NotImplementedError)
      << "begin_forward: token trees are not supported";
  Begin(Required(ids[0]), counts[0]);
}

void Gemma4KVStateObj::Begin(Sequence& sequence, int64_t count) {
  GEMMA4_REQUIRE(current().pending == 0, RuntimeError)
      << "begin_forward: the forward before, of sequence " << *current().id << ", has not ended";
  GEMMA4_REQUIRE(!sequence.import, RuntimeError)
      << "begin_forward: a checkpoint is being imported: finish that, or clear the state";
  GEMMA4_REQUIRE(1 <= count && count <= chunk_, ValueError)
      << "begin_forward: expected 1 to " << chunk_ << " tokens, found " << count;
  GEMMA4_REQUIRE(sequence.length + count <= capacity_, ValueError)
      << "the context is full: it holds " << sequence.length << " of " << capacity_ << " tokens, "
      << count << " more were asked for";
  const std::array<int32_t, 4> host_positions = PositionValues(sequence.length, count);
  Upload(host_positions.data(), ffi::Shape({4}), positions_);
  UploadRotary(sequence.length, count);
  current_ = static_cast<size_t>(&sequence - slots_.data());
  NoteWritten(sequence.length + count);
  sequence.pending = count;
  ++version_;
}

void Gemma4KVStateObj::EndForward() {
  Sequence& sequence = slots_[current_];
  GEMMA4_REQUIRE(sequence.pending > 0, RuntimeError) << "end_forward without begin_forward";
  sequence.length += sequence.pending;
  sequence.pending = 0;
}

// --- What kernels read and write ---

const LayerCache& Gemma4KVStateObj::Layer(int64_t index) const {
  GEMMA4_REQUIRE(0 <= index && index < static_cast<int64_t>(layers().size()), IndexError)
      << "layer slot: expected 0 to " << static_cast<int64_t>(layers().size()) - 1 << ", found "
      << index;
  return layers()[static_cast<size_t>(index)];
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
  int64_t room = capacity_ - current().length;
  for (const LayerCache& layer : layers()) {
    // A layer with a row for every position of the context never wraps, nor does a part of one.
    if (layer.window > 0 && layer.rows < capacity_)
      room = std::min(room, layer.rows - layer.window + 1);
  }
  return room;
}

void Gemma4KVStateObj::NoteWritten(int64_t length) {
  int64_t& written = slots_[current_].written;
  written = std::max(written, length);
}

// --- For checkpoints ---

Sequence* Gemma4KVStateObj::Find(int64_t id) {
  for (Sequence& sequence : slots_) {
    if (sequence.id == id) return &sequence;
  }
  return nullptr;
}

bool Gemma4KVStateObj::HasFreeSlot() const {
  const bool all_made = static_cast<int64_t>(slots_.size()) == max_sequences_;
  return !all_made || std::any_of(slots_.begin(), slots_.end(),
                                  [](const Sequence& slot) { return !slot.id.has_value(); });
}

void Gemma4KVStateObj::PrepareImport(int64_t id, Import import) {
  if (Find(id) == nullptr) {
    const size_t slot = FreeSlot(id);
    slots_[slot].id = id;
  }
  Sequence& sequence = Required(id);
  sequence.Restart();
  sequence.import = std::move(import);
  ++version_;
}

void Gemma4KVStateObj::NoteImported(Sequence& sequence, size_t group) {
  sequence.import->done[group] = true;
  ++version_;
}

void Gemma4KVStateObj::FinishImport(Sequence& sequence) {
  sequence.length = sequence.import->length;
  sequence.written = sequence.import->written;
  sequence.import.reset();
  ++version_;
}

// --- Within ---

Sequence& Gemma4KVStateObj::Required(int64_t id) {
  Sequence* sequence = Find(id);
  GEMMA4_REQUIRE(sequence != nullptr, ValueError)
      << "there is no sequence " << id << " in this state";
  return *sequence;
}

size_t Gemma4KVStateObj::FreeSlot(int64_t id) {
  GEMMA4_REQUIRE(Find(id) == nullptr, ValueError)
      << "there is a sequence " << id << " in this state: remove sequence " << id << " first";
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    if (!slots_[slot].id) return slot;
  }
  GEMMA4_REQUIRE(HasFreeSlot(), ValueError)
      << "this state holds at most " << max_sequences_ << ": remove sequence " << *slots_[0].id
      << " or another before adding " << id;
  Sequence added;
  for (const LayerCache& layer : slots_[0].layers) {
    added.layers.push_back(
        MakeCache(layer.first, layer.rows, layer.window, layer.key.shape(), dtype_, device_));
  }
  slots_.push_back(std::move(added));
  return slots_.size() - 1;
}

void Gemma4KVStateObj::UploadRotary(int64_t first, int64_t count) {
  const int64_t pairs = rotary_pairs();
  if (pairs == 0) return;
  host_rotary_.resize(static_cast<size_t>(count * pairs * 2));
  for (int64_t row = 0; row < count; ++row) {
    RotaryValues(first + row, host_rotary_.data() + row * pairs * 2);
  }
  Upload(host_rotary_.data(), ffi::Shape({count, pairs, 2}), rotary_);
}

}  // namespace gemma4_compile
