/*!
 * The state of one conversation: keys and values of every layer that owns them, and the positions
 * of the tokens that are being added. Linked into every model library; kernels read and write its
 * tensors directly.
 *
 * A layer's key and value tensors hold position p in row p % rows. Full layers have a row for every
 * position of the context; sliding layers are rings of at least window - 1 + chunk rows, so that a
 * whole chunk may be written before the first of its queries reads the window behind it.
 *
 * Nothing of TVM's C++ runtime is called that could throw: on native targets this file brings a C++
 * library of its own, and an exception must not cross from one into the other. Tensors are made and
 * filled through global functions, whose errors arrive as return codes (CallRuntime).
 */
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "src/runtime/vm/kv_state.h"

namespace gemma4_compile {

namespace ffi = tvm::ffi;
using tvm::runtime::vm::KVState;
using tvm::runtime::vm::KVStateObj;

constexpr DLDataType kInt32{kDLInt, 32, 1};
constexpr DLDataType kFloat32{kDLFloat, 32, 1};
constexpr int64_t kMaxPosition = std::numeric_limits<int32_t>::max();

/*! Throw an error of the given kind, whose message is for users and so without the condition's
 * text. */
#define GEMMA4_REQUIRE(condition, kind) \
  if (condition) {                      \
  } else                                \
    TVM_FFI_THROW(kind)

/*! Keys and values of one layer. */
struct LayerCache {
  int64_t rows;    // positions that fit
  int64_t window;  // positions that a query sees, itself included; 0 = all of them
  ffi::Tensor key;
  ffi::Tensor value;
};

/*!
 * Call a global function of the runtime through its C interface, which turns an exception into a
 * return code. The plain call operator would jump into the runtime's C++ and let its exceptions
 * through.
 */
template <typename... Args>
ffi::Any CallRuntime(const char* name, const Args&... args) {
  const ffi::Function function = ffi::Function::GetGlobalRequired(name);
  ffi::AnyView packed[] = {ffi::AnyView(args)...};
  ffi::Any result;
  TVM_FFI_CHECK_SAFE_CALL(TVMFFIFunctionCall(
      const_cast<ffi::FunctionObj*>(function.get()), reinterpret_cast<TVMFFIAny*>(packed),
      static_cast<int32_t>(sizeof...(Args)), reinterpret_cast<TVMFFIAny*>(&result)));
  return result;
}

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

class Gemma4KVStateObj final : public KVStateObj {
 public:
  Gemma4KVStateObj(int64_t capacity, int64_t chunk, const ffi::Shape& layout,
                   const ffi::Shape& rotary, DLDataType dtype, DLDevice device)
      : capacity_(capacity), chunk_(chunk), inverse_frequencies_(InverseFrequencies(rotary)) {
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
    const int64_t pairs = static_cast<int64_t>(inverse_frequencies_.size());
    positions_ = AllocateTensor(ffi::Shape({4}), kInt32, device);
    rotary_ = AllocateTensor(ffi::Shape({chunk, pairs, 2}), kFloat32, device);
  }

  // --- Sequence ---

  void Clear() final {
    has_sequence_ = false;
    Restart();
  }

  void AddSequence(int64_t id) final {
    GEMMA4_REQUIRE(!has_sequence_, ValueError) << "this state holds one sequence: remove sequence "
                                               << sequence_ << " before adding " << id;
    has_sequence_ = true;
    sequence_ = id;
    Restart();
  }

  void RemoveSequence(int64_t id) final {
    CheckSequence(id);
    Clear();
  }

  void ForkSequence(int64_t, int64_t, int64_t) final {
    TVM_FFI_THROW(NotImplementedError) << "this state holds one sequence and cannot fork it";
  }

  void PopN(int64_t id, int32_t count) final {
    CheckSequence(id);
    Pop(count);
  }

  /*! Take back the last `count` tokens, if the rings still hold what the token before them attends
   * to. */
  void Pop(int64_t count) {
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
  }

  // --- Forward ---

  void BeginForward(const ffi::Shape& ids, const ffi::Shape& counts,
                    const ffi::Optional<ffi::Shape>& tree) final {
    GEMMA4_REQUIRE(ids.size() == 1 && counts.size() == 1, ValueError)
        << "begin_forward: expected 1 sequence and 1 length, found " << ids.size() << " and "
        << counts.size();
    GEMMA4_REQUIRE(!tree.has_value(), NotImplementedError)
        << "begin_forward: token trees are not supported";
    CheckSequence(ids[0]);
    Begin(counts[0]);
  }

  /*! Announce `count` new tokens: write their positions and rotary values to the device. */
  void Begin(int64_t count) {
    GEMMA4_REQUIRE(has_sequence_, RuntimeError) << "begin_forward: add a sequence first";
    GEMMA4_REQUIRE(pending_ == 0, RuntimeError)
        << "begin_forward: the forward before has not ended";
    GEMMA4_REQUIRE(1 <= count && count <= chunk_, ValueError)
        << "begin_forward: expected 1 to " << chunk_ << " tokens, found " << count;
    GEMMA4_REQUIRE(length_ + count <= capacity_, ValueError)
        << "the context is full: it holds " << length_ << " of " << capacity_ << " tokens, "
        << count << " more were asked for";
    const int32_t first = static_cast<int32_t>(length_);
    const int32_t host_positions[4] = {first, static_cast<int32_t>(count),
                                       first + static_cast<int32_t>(count), 0};
    Upload(host_positions, ffi::Shape({4}), positions_);
    UploadRotary(count);
    written_ = std::max(written_, length_ + count);
    pending_ = count;
  }

  void EndForward() final {
    GEMMA4_REQUIRE(pending_ > 0, RuntimeError) << "end_forward without begin_forward";
    length_ += pending_;
    pending_ = 0;
  }

  // --- What kernels read and write ---

  const LayerCache& Layer(int64_t slot) const {
    GEMMA4_REQUIRE(0 <= slot && slot < static_cast<int64_t>(layers_.size()), IndexError)
        << "layer slot: expected 0 to " << static_cast<int64_t>(layers_.size()) - 1 << ", found "
        << slot;
    return layers_[static_cast<size_t>(slot)];
  }
  const ffi::Tensor& positions() const { return positions_; }
  const ffi::Tensor& rotary() const { return rotary_; }
  int64_t length() const { return length_; }
  int64_t sequence() const { return sequence_; }

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("gemma4_compile.KVState", Gemma4KVStateObj, KVStateObj);

 private:
  void Restart() { length_ = written_ = pending_ = 0; }

  void CheckSequence(int64_t id) const {
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
  int64_t ShortestLengthHeld() const {
    int64_t shortest = 0;
    for (const LayerCache& layer : layers_) {
      if (layer.window > 1 && written_ > layer.rows) {
        shortest = std::max(shortest, written_ - layer.rows + layer.window - 1);
      }
    }
    return shortest;
  }

  void UploadRotary(int64_t count) {
    const int64_t pairs = static_cast<int64_t>(inverse_frequencies_.size());
    if (pairs == 0) return;
    host_rotary_.clear();
    for (int64_t position = length_; position < length_ + count; ++position) {
      for (const float frequency : inverse_frequencies_) {
        const float angle = static_cast<float>(position) * frequency;
        host_rotary_.push_back(static_cast<float>(std::cos(static_cast<double>(angle))));
        host_rotary_.push_back(static_cast<float>(std::sin(static_cast<double>(angle))));
      }
    }
    Upload(host_rotary_.data(), ffi::Shape({count, pairs, 2}), rotary_);
  }

  const int64_t capacity_;                        // tokens that the context holds
  const int64_t chunk_;                           // most tokens of one forward
  const std::vector<float> inverse_frequencies_;  // of all rotary kinds
  std::vector<LayerCache> layers_;
  ffi::Tensor positions_;  // int32[4] = {first new position, count, first + count, 0}
  ffi::Tensor rotary_;     // float32[chunk, pairs, 2] = cos and sin of each new position's angles
  std::vector<float> host_rotary_;
  bool has_sequence_ = false;
  int64_t sequence_ = 0;
  int64_t length_ = 0;  // tokens whose forward has ended
  int64_t written_ =
      0;  // greatest length begun so far: what popped tokens overwrote stays overwritten
  int64_t pending_ = 0;  // tokens between begin_forward and end_forward
};

// --- Functions of the library ---

Gemma4KVStateObj* Self(const KVState& state) {
  const auto* self = state.as<Gemma4KVStateObj>();
  GEMMA4_REQUIRE(self != nullptr, TypeError) << "expected a gemma4_compile.KVState";
  return const_cast<Gemma4KVStateObj*>(self);
}

int64_t Single(const ffi::Shape& shape, const char* name) {
  GEMMA4_REQUIRE(shape.size() == 1, ValueError)
      << name << ": expected 1 number, found " << shape.size();
  return shape[0];
}

KVState Create(ffi::Shape max_sequences, ffi::Shape total, ffi::Shape chunk, ffi::Shape sliding,
               ffi::Shape layout, ffi::Shape rotary, int64_t dtype_bits, int64_t device_type) {
  GEMMA4_REQUIRE(Single(max_sequences, "sequences") == 1, ValueError)
      << "sequences: this state holds 1, asked for " << max_sequences[0];
  GEMMA4_REQUIRE(Single(sliding, "sliding window flag") == 0, ValueError)
      << "the sliding window of Gemma 4 is part of the model: leave the client's sliding window "
         "off";
  GEMMA4_REQUIRE(dtype_bits == 16 || dtype_bits == 32, ValueError)
      << "cache dtype: expected 16 or 32 bits, found " << dtype_bits;
  const DLDataType dtype{kDLFloat, static_cast<uint8_t>(dtype_bits), 1};
  const DLDevice device{static_cast<DLDeviceType>(device_type), 0};
  return KVState(ffi::make_object<Gemma4KVStateObj>(Single(total, "context length"),
                                                    Single(chunk, "prefill chunk"), layout, rotary,
                                                    dtype, device));
}

ffi::Tensor Key(KVState state, int64_t slot) { return Self(state)->Layer(slot).key; }
ffi::Tensor Value(KVState state, int64_t slot) { return Self(state)->Layer(slot).value; }
ffi::Tensor Positions(KVState state) { return Self(state)->positions(); }
ffi::Tensor Rotary(KVState state) { return Self(state)->rotary(); }
int64_t Length(KVState state) { return Self(state)->length(); }
void Clear(KVState state) { Self(state)->Clear(); }
void AddSequence(KVState state, int64_t id) { Self(state)->AddSequence(id); }
void RemoveSequence(KVState state, int64_t id) { Self(state)->RemoveSequence(id); }
void BeginForward(KVState state, int64_t count) { Self(state)->Begin(count); }
void EndForward(KVState state) { Self(state)->EndForward(); }
void PopN(KVState state, int64_t count) { Self(state)->Pop(count); }

// In a wasm library the whole runtime is one image, and functions are found by their global names.
// A native library exports its own, so that two of them in one process keep apart.
#ifdef __wasm__
#define GEMMA4_FUNCTION(name, function) \
  TVM_FFI_STATIC_INIT_BLOCK() { ffi::reflection::GlobalDef().def(#name, function); }
#else
#define GEMMA4_FUNCTION(name, function) TVM_FFI_DLL_EXPORT_TYPED_FUNC(name, function)
#endif

GEMMA4_FUNCTION(gemma4_kv_create, Create)
GEMMA4_FUNCTION(gemma4_kv_key, Key)
GEMMA4_FUNCTION(gemma4_kv_value, Value)
GEMMA4_FUNCTION(gemma4_kv_positions, Positions)
GEMMA4_FUNCTION(gemma4_kv_rotary, Rotary)
GEMMA4_FUNCTION(gemma4_kv_length, Length)
GEMMA4_FUNCTION(gemma4_kv_clear, Clear)
GEMMA4_FUNCTION(gemma4_kv_add_sequence, AddSequence)
GEMMA4_FUNCTION(gemma4_kv_remove_sequence, RemoveSequence)
GEMMA4_FUNCTION(gemma4_kv_begin_forward, BeginForward)
GEMMA4_FUNCTION(gemma4_kv_end_forward, EndForward)
GEMMA4_FUNCTION(gemma4_kv_pop_n, PopN)

}  // namespace gemma4_compile
