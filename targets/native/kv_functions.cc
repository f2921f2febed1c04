/*!
 * The functions of the library by which compiled models make a KV state and reach its tensors, and
 * by which native callers drive it.
 */
#include "kv_state.h"

namespace gemma4_compile {

namespace {

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
               ffi::Shape layout, ffi::Shape rotary, int64_t dtype_bits, int64_t device_type,
               ffi::String package) {
  GEMMA4_REQUIRE(Single(sliding, "sliding window flag") == 0, ValueError)
      << "the sliding window of Gemma 4 is part of the model: leave the client's sliding window "
         "off";
  GEMMA4_REQUIRE(dtype_bits == 16 || dtype_bits == 32, ValueError)
      << "cache dtype: expected 16 or 32 bits, found " << dtype_bits;
  const DLDataType dtype{kDLFloat, static_cast<uint8_t>(dtype_bits), 1};
  const DLDevice device{static_cast<DLDeviceType>(device_type), 0};
  return KVState(ffi::make_object<Gemma4KVStateObj>(
      Single(max_sequences, "sequences"), Single(total, "context length"),
      Single(chunk, "prefill chunk"), layout, rotary, dtype, device, std::string(package)));
}

/*! Keys and values of a layer, whose rows are there for what is launched from now on. */
const LayerCache& Present(const KVState& state, int64_t layer) {
  Self(state)->AwaitRows(layer);
  return Self(state)->Layer(layer);
}

ffi::Tensor Key(KVState state, int64_t layer) { return Present(state, layer).key; }
ffi::Tensor Value(KVState state, int64_t layer) { return Present(state, layer).value; }
ffi::Tensor Positions(KVState state) { return Self(state)->positions(); }
ffi::Tensor KeyPool(KVState state, int64_t layer) { return Self(state)->Pool(layer).key; }
ffi::Tensor ValuePool(KVState state, int64_t layer) { return Self(state)->Pool(layer).value; }
ffi::Tensor KeyOfRow(KVState state, int64_t layer, int64_t row) {
  return Self(state)->LayerOfRow(layer, row).key;
}
ffi::Tensor ValueOfRow(KVState state, int64_t layer, int64_t row) {
  return Self(state)->LayerOfRow(layer, row).value;
}
ffi::Tensor RowSlots(KVState state) { return Self(state)->row_slots(); }
ffi::Tensor Rotary(KVState state) { return Self(state)->rotary(); }
int64_t Length(KVState state, int64_t id) { return Self(state)->Required(id).length; }
void Clear(KVState state) { Self(state)->Clear(); }
int64_t AddSequence(KVState state, int64_t id) { return Self(state)->Add(id); }
void RemoveSequence(KVState state, int64_t id) { Self(state)->RemoveSequence(id); }
int64_t ForkSequence(KVState state, int64_t parent, int64_t child, int64_t position) {
  return Self(state)->Fork(parent, child, position);
}
void BeginForward(KVState state, ffi::Shape ids, ffi::Shape counts) {
  Self(state)->BeginForward(ids, counts, std::nullopt);
}
void EndForward(KVState state) { Self(state)->EndForward(); }
void PopN(KVState state, int64_t id, int64_t count) { Self(state)->Pop(id, count); }

}  // namespace

GEMMA4_FUNCTION(gemma4_kv_create, Create)
GEMMA4_FUNCTION(gemma4_kv_key, Key)
GEMMA4_FUNCTION(gemma4_kv_value, Value)
GEMMA4_FUNCTION(gemma4_kv_positions, Positions)
GEMMA4_FUNCTION(gemma4_kv_key_pool, KeyPool)
GEMMA4_FUNCTION(gemma4_kv_value_pool, ValuePool)
GEMMA4_FUNCTION(gemma4_kv_key_of_row, KeyOfRow)
GEMMA4_FUNCTION(gemma4_kv_value_of_row, ValueOfRow)
GEMMA4_FUNCTION(gemma4_kv_row_slots, RowSlots)
GEMMA4_FUNCTION(gemma4_kv_rotary, Rotary)
GEMMA4_FUNCTION(gemma4_kv_length, Length)
GEMMA4_FUNCTION(gemma4_kv_clear, Clear)
GEMMA4_FUNCTION(gemma4_kv_add_sequence, AddSequence)
GEMMA4_FUNCTION(gemma4_kv_remove_sequence, RemoveSequence)
GEMMA4_FUNCTION(gemma4_kv_fork_sequence, ForkSequence)
GEMMA4_FUNCTION(gemma4_kv_begin_forward, BeginForward)
GEMMA4_FUNCTION(gemma4_kv_end_forward, EndForward)
GEMMA4_FUNCTION(gemma4_kv_pop_n, PopN)

}  // namespace gemma4_compile
