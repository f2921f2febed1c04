/*!
 * The state of some sequences: keys and values of every layer that owns them, and the positions of
 * the tokens that are being added. Linked into every model library; kernels read and write its
 * tensors directly.
 *
 * A forward is of some tokens of one sequence, whose keys and values the kernels find, or of one token
 * of each of several: then they find the keys and values of all slots, where kernels take addresses,
 * and elsewhere those of the slot that a row is of. A slot keeps its memory, so that what was recorded for it (a CUDA graph, a list of launches)
 * stays right for every sequence that has it.
 */
#ifndef GEMMA4_COMPILE_KV_STATE_H_
#define GEMMA4_COMPILE_KV_STATE_H_

#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kv_memory.h"
#include "kv_sequence.h"
#include "src/runtime/vm/kv_state.h"

namespace gemma4_compile {

using tvm::runtime::vm::KVState;
using tvm::runtime::vm::KVStateObj;

/*! Rows that a stream of their own brings while a forward runs: who asks for an entry's keys or values
 * has the default stream wait for its event first. */
struct ComingRows {
  using Wait = int (*)(void* stream, void* event, unsigned flags);
  Wait wait = nullptr;
  std::vector<void*> events;  // of each entry; null where none are coming

  /*! Wait for an entry's rows, once. */
  void Await(int64_t entry);
};

/*! The state of at most `max_sequences` sequences, driven by TVM's KV state interface and by functions of ours. */
class Gemma4KVStateObj final : public KVStateObj {
 public:
  /*!
   * Allocate the tensors of all slots, filled with zeros; where kernels do not take addresses, those
   * of the first slot: those of another come with the first sequence that has it.
   * \param max_sequences sequences at a time
   * \param capacity tokens of the context of each
   * \param chunk most tokens of one forward
   * \param layout heads, head_dim, rows (0: the whole context) and window (0: none) of each layer;
   * rows of -n: one of n equal parts of the whole context, whose n entries follow one another
   * \param rotary head_dim, pairs and the bits of the float64 theta of each rotary kind
   * \param package names the package whose model writes the keys and values
   */
  Gemma4KVStateObj(int64_t max_sequences, int64_t capacity, int64_t chunk, const ffi::Shape& layout,
                   const ffi::Shape& rotary, DLDataType dtype, DLDevice device,
                   std::string package);

  // --- Sequences ---

  /*! Remove all of them. */
  void Clear() final;
  void AddSequence(int64_t id) final { Add(id); }
  /*! Add an empty sequence; return its slot, the first that is free. */
  int64_t Add(int64_t id);
  void RemoveSequence(int64_t id) final;
  void ForkSequence(int64_t parent, int64_t child, int64_t position) final {
    Fork(parent, child, position);
  }
  /*! Add a sequence that begins with the first tokens of another; return its slot.
   * \param position how many; -1 for all
   */
  int64_t Fork(int64_t parent, int64_t child, int64_t position);
  void PopN(int64_t id, int32_t count) final { Pop(id, count); }
  /*! Take back the last `count` tokens, if the rings still hold what the token before them attends
   * to. */
  void Pop(int64_t id, int64_t count);
  /*! Give a sequence without tokens those whose rows were written into it, as of `Sequence`. */
  void Resume(int64_t id, int64_t length, int64_t shortest);

  // --- Forward ---

  /*! Announce new tokens of one sequence or of several, of which each has one where the slots have
   * memory of their own: write their positions and rotary values to the device. */
  void BeginForward(const ffi::Shape& ids, const ffi::Shape& counts,
                    const ffi::Optional<ffi::Shape>& tree) final;
  void EndForward() final;

  // --- What kernels read and write: of the sequence whose forward began last ---

  const LayerCache& Layer(int64_t index) const;
  const std::vector<LayerCache>& layers() const { return current().layers; }
  const ffi::Tensor& positions() const { return positions_; }
  const ffi::Tensor& rotary() const { return rotary_; }
  /*! Keys and values of all slots; an error where each slot has memory of its own. */
  const LayerPool& Pool(int64_t index) const;
  /*! Keys and values of the slot that a row of the forward is of, and of the last row's for rows
   * behind it, which no kernel reads. */
  const LayerCache& LayerOfRow(int64_t index, int64_t row) const;
  /*! Position and slot of each row of a forward of several sequences. */
  const ffi::Tensor& row_slots() const;

  // --- For a caller that runs steps by itself ---

  /*! The sequence whose forward began last; before the first forward that of the first slot. */
  const Sequence& current() const { return slots_[current_]; }
  /*! The contents of `positions` for a forward of `count` tokens from position `first` on. */
  static std::array<int32_t, 4> PositionValues(int64_t first, int64_t count);
  /*! Write one position's row of `rotary`: `rotary_pairs()` cosines and sines, by turns. */
  void RotaryValues(int64_t position, float* row) const;
  int64_t rotary_pairs() const { return static_cast<int64_t>(inverse_frequencies_.size()); }
  int64_t capacity() const { return capacity_; }
  int64_t max_sequences() const { return max_sequences_; }
  /*! Counts the calls that change a sequence, but for the ends of forwards. */
  uint32_t version() const { return version_; }
  /*! How many tokens from position `length` on may be written, so that all that the token at
   * `length` attends to is still there afterwards. */
  int64_t Room() const;
  /*! Note that rows of positions below `length` were written without a forward of this state. */
  void NoteWritten(int64_t length);

  // --- For rows that another stream brings (kv_rows.cc) ---

  /*! Note what the forward that has begun has to wait for; its end, or another's begin, forgets it. */
  void ExpectRows(ComingRows coming) { coming_ = std::move(coming); }
  void AwaitRows(int64_t entry) { coming_.Await(entry); }

  // --- For checkpoints (kv_checkpoint.cc) ---

  int64_t chunk() const { return chunk_; }
  DLDataType dtype() const { return dtype_; }
  const std::string& package() const { return package_; }
  const std::vector<float>& inverse_frequencies() const { return inverse_frequencies_; }
  /*! A sequence by its id, or null. */
  Sequence* Find(int64_t id);
  /*! A sequence by its id; an error where there is none. */
  Sequence& Required(int64_t id);
  /*! Whether one more sequence can be added. */
  bool HasFreeSlot() const;
  /*! Empty a sequence, or add it, and wait for page groups; nothing is forwarded before all came. */
  void PrepareImport(int64_t id, Import import);
  void NoteImported(Sequence& sequence, size_t group);
  void FinishImport(Sequence& sequence);

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("gemma4_compile.KVState", Gemma4KVStateObj, KVStateObj);

 private:
  /*! A slot that no sequence has, with its memory; the id is for the error where there is none. */
  size_t FreeSlot(int64_t id);
  Sequence MakeSlot(int64_t slot) const;
  void RequireNoForward() const;
  /*! An error where a sequence cannot take so many tokens now. */
  void RequireRoom(const Sequence& sequence, int64_t count) const;
  void Begin(Sequence& sequence, int64_t count);
  /*! Begin a forward of some tokens of each of several sequences, those of one after another. */
  void BeginRows(const std::vector<size_t>& slots, const ffi::Shape& counts);
  void UploadRotary(const std::vector<int64_t>& positions);

  const int64_t max_sequences_;
  const int64_t capacity_;                        // tokens that the context holds
  const int64_t chunk_;                           // most tokens of one forward
  const DLDataType dtype_;                        // of keys and values
  const DLDevice device_;                         // where they are
  const std::string package_;                     // whose model writes them
  const std::vector<float> inverse_frequencies_;  // of all rotary kinds
  std::vector<CacheEntry> entries_;               // what each slot has
  std::vector<LayerPool>
      pools_;  // one an entry, of all slots; none where each has memory of its own
  std::vector<Sequence> slots_;  // that have memory: all, or as many as there ever were
  size_t current_ = 0;           // slot of the forward that began last
  std::vector<size_t> forward_;  // all of its slots
  ffi::Tensor positions_;        // int32[4] = {first new position, count, first + count, 0}
  ffi::Tensor row_slots_;  // int32[chunk, 2] = {position, slot} of each row; undefined: of one
  ffi::Tensor rotary_;     // float32[chunk, pairs, 2] = cos and sin of each new position's angles
  std::vector<float> first_rotary_;  // rows of the first positions
  std::vector<float> host_rotary_;
  ComingRows coming_;
  uint32_t version_ = 0;
};

}  // namespace gemma4_compile

#endif  // GEMMA4_COMPILE_KV_STATE_H_
