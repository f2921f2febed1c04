#include "kv_state.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "kv_rotary.h"

namespace gemma4_compile {

namespace {

constexpr DLDataType kInt32{kDLInt, 32, 1};
constexpr DLDataType kFloat32{kDLFloat, 32, 1};
/*! So many positions' rotary values are kept. */
constexpr int64_t kFirstPositions = 2048;
/*! Kernels assume that a tensor begins at a multiple of so many bytes. */
constexpr int64_t kSlotAlignment = 64;
constexpr int64_t kMaxPosition = std::numeric_limits<int32_t>::max();

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

void ComingRows::Await(int64_t entry) {
  if (entry < 0 || entry >= static_cast<int64_t>(events.size())) return;
  void*& event = events[static_cast<size_t>(entry)];
  if (event == nullptr) return;
  const int code = wait(nullptr, event, 0);
  GEMMA4_REQUIRE(code == 0, RuntimeError)
      << "rows of entry " << entry << " cannot be waited for: error " << code;
  event = nullptr;
}

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
  const bool is_pooled = TakesAddresses(device);
  const bool has_several = is_pooled && max_sequences > 1;
  entries_ = ReadLayout(layout, capacity, chunk, dtype, has_several ? kSlotAlignment : 0);
  if (is_pooled) {
    for (const CacheEntry& entry : entries_) {
      pools_.push_back(MakePool(entry, max_sequences, dtype, device));
    }
    for (int64_t slot = 0; slot < max_sequences; ++slot) slots_.push_back(MakeSlot(slot));
  } else {
    slots_.push_back(MakeSlot(0));
  }
  if (is_pooled || (device.device_type == kDLMetal && max_sequences > 1)) {
    row_slots_ = AllocateTensor(ffi::Shape({chunk, 2}), kInt32, device);
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
  const bool is_of_rows = ids.size() > 1 && row_slots_.defined();
  GEMMA4_REQUIRE(ids.size() == 1 || is_of_rows, NotImplementedError)
      << "begin_forward: the kernels of this library take 1 sequence at a time, found "
      << ids.size() << ": begin and end a forward for each";
  GEMMA4_REQUIRE(!tree.has_value(), NotImplementedError)
      << "begin_forward: token trees are not supported";
  RequireNoForward();
  coming_ = {};
  if (!is_of_rows) {
    Begin(Required(ids[0]), counts[0]);
    return;
  }
  std::vector<size_t> slots;
  for (size_t row = 0; row < ids.size(); ++row) {
    slots.push_back(static_cast<size_t>(&Required(ids[row]) - slots_.data()));
    GEMMA4_REQUIRE(counts[row] == 1 || !pools_.empty(), NotImplementedError)
        << "begin_forward: the kernels of this library take 1 token of each of several sequences, "
           "found "
        << counts[row] << " of sequence " << ids[row] << ": begin and end a forward for it";
    GEMMA4_REQUIRE(std::count(slots.begin(), slots.end(), slots.back()) == 1, ValueError)
        << "begin_forward: sequence " << ids[row] << " is named twice";
  }
  BeginRows(slots, counts);
}

void Gemma4KVStateObj::RequireNoForward() const {
  for (const size_t slot : forward_) {
    GEMMA4_REQUIRE(slots_[slot].pending == 0, RuntimeError)
        << "begin_forward: the forward before, of sequence " << *slots_[slot].id
        << ", has not ended";
  }
}

void Gemma4KVStateObj::RequireRoom(const Sequence& sequence, int64_t count) const {
  GEMMA4_REQUIRE(!sequence.import, RuntimeError)
      << "begin_forward: a checkpoint is being imported: finish that, or clear the state";
  GEMMA4_REQUIRE(1 <= count && count <= chunk_, ValueError)
      << "begin_forward: expected 1 to " << chunk_ << " tokens, found " << count;
  GEMMA4_REQUIRE(sequence.length + count <= capacity_, ValueError)
      << "the context is full: it holds " << sequence.length << " of " << capacity_ << " tokens, "
      << count << " more were asked for";
}

void Gemma4KVStateObj::BeginRows(const std::vector<size_t>& slots, const ffi::Shape& counts) {
  std::vector<int32_t> places;
  std::vector<int64_t> positions;
  for (size_t index = 0; index < slots.size(); ++index) {
    const size_t slot = slots[index];
    RequireRoom(slots_[slot], counts[index]);
    for (int64_t token = 0; token < counts[index]; ++token) {
      positions.push_back(slots_[slot].length + token);
      places.push_back(static_cast<int32_t>(positions.back()));
      places.push_back(static_cast<int32_t>(slot));
    }
  }
  const int64_t rows = static_cast<int64_t>(positions.size());
  GEMMA4_REQUIRE(rows <= chunk_, ValueError)
      << "begin_forward: expected at most " << chunk_ << " tokens of all sequences, found " << rows;
  Upload(places.data(), ffi::Shape({rows, 2}), row_slots_);
  UploadRotary(positions);
  for (size_t index = 0; index < slots.size(); ++index) {
    Sequence& sequence = slots_[slots[index]];
    sequence.written = std::max(sequence.written, sequence.length + counts[index]);
    sequence.pending = counts[index];
  }
  current_ = slots.back();
  forward_ = slots;
  ++version_;
}

void Gemma4KVStateObj::Begin(Sequence& sequence, int64_t count) {
  RequireRoom(sequence, count);
  const std::array<int32_t, 4> host_positions = PositionValues(sequence.length, count);
  Upload(host_positions.data(), ffi::Shape({4}), positions_);
  std::vector<int64_t> positions(static_cast<size_t>(count));
  std::iota(positions.begin(), positions.end(), sequence.length);
  UploadRotary(positions);
  current_ = static_cast<size_t>(&sequence - slots_.data());
  forward_.assign(1, current_);
  NoteWritten(sequence.length + count);
  sequence.pending = count;
  ++version_;
}

void Gemma4KVStateObj::EndForward() {
  const bool has_begun = std::any_of(forward_.begin(), forward_.end(),
                                     [this](size_t slot) { return slots_[slot].pending > 0; });
  GEMMA4_REQUIRE(has_begun, RuntimeError) << "end_forward without begin_forward";
  coming_ = {};
  for (const size_t slot : forward_) {
    slots_[slot].length += slots_[slot].pending;
    slots_[slot].pending = 0;
  }
}

// --- What kernels read and write ---

const LayerCache& Gemma4KVStateObj::Layer(int64_t index) const {
  GEMMA4_REQUIRE(0 <= index && index < static_cast<int64_t>(layers().size()), IndexError)
      << "layer slot: expected 0 to " << static_cast<int64_t>(layers().size()) - 1 << ", found "
      << index;
  return layers()[static_cast<size_t>(index)];
}

const LayerPool& Gemma4KVStateObj::Pool(int64_t index) const {
  GEMMA4_REQUIRE(!pools_.empty(), NotImplementedError)
      << "the slots of this state have memory of their own: its kernels take 1 sequence at a time";
  Layer(index);
  return pools_[static_cast<size_t>(index)];
}

const LayerCache& Gemma4KVStateObj::LayerOfRow(int64_t index, int64_t row) const {
  Layer(index);
  GEMMA4_REQUIRE(row >= 0 && !forward_.empty(), IndexError)
      << "row of a forward: expected one of " << forward_.size() << ", found " << row;
  const size_t last = forward_.size() - 1;
  const size_t slot = forward_[std::min(static_cast<size_t>(row), last)];
  return slots_[slot].layers[static_cast<size_t>(index)];
}

const ffi::Tensor& Gemma4KVStateObj::row_slots() const {
  GEMMA4_REQUIRE(row_slots_.defined(), NotImplementedError)
      << "this state has no rows of several sequences: its kernels take 1 sequence at a time";
  return row_slots_;
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
  std::vector<float> angles;
  float most = 0.0F;
  for (const float frequency : inverse_frequencies_) {
    angles.push_back(static_cast<float>(position) * frequency);
    most = std::max(most, std::abs(angles.back()));
  }
  if (most <= kMostAngle) {
    CosinesAndSines(angles.data(), angles.size(), row);
    return;
  }
  for (const float angle : angles) {
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
  slots_.push_back(MakeSlot(static_cast<int64_t>(slots_.size())));
  return slots_.size() - 1;
}

Sequence Gemma4KVStateObj::MakeSlot(int64_t slot) const {
  Sequence made;
  for (size_t index = 0; index < entries_.size(); ++index) {
    made.layers.push_back(pools_.empty() ? MakeCache(entries_[index], dtype_, device_)
                                         : SlotOf(pools_[index], entries_[index], slot));
  }
  return made;
}

void Gemma4KVStateObj::UploadRotary(const std::vector<int64_t>& positions) {
  const int64_t pairs = rotary_pairs(), count = static_cast<int64_t>(positions.size());
  if (pairs == 0) return;
  host_rotary_.resize(static_cast<size_t>(count * pairs * 2));
  for (int64_t row = 0; row < count; ++row) {
    RotaryValues(positions[static_cast<size_t>(row)], host_rotary_.data() + row * pairs * 2);
  }
  Upload(host_rotary_.data(), ffi::Shape({count, pairs, 2}), rotary_);
}

}  // namespace gemma4_compile
