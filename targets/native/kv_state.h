/*!
 * The state of one conversation: keys and values of every layer that owns them, and the positions
 * of the tokens that are being added. Linked into every model library; kernels read and write its
 * tensors directly.
 *
 * A layer's key and value tensors hold position p in row p % rows. Full layers have a row for every
 * position of the context; sliding layers are rings of at least window - 1 + chunk rows, so that a
 * whole chunk may be written before the first of its queries reads the window before it.
 */
#ifndef GEMMA4_COMPILE_KV_STATE_H_
#define GEMMA4_COMPILE_KV_STATE_H_

#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "library.h"
#include "src/runtime/vm/kv_state.h"

namespace gemma4_compile {

using tvm::runtime::vm::KVState;
using tvm::runtime::vm::KVStateObj;

/*! Keys and values of one layer. */
struct LayerCache {
  int64_t rows;    // positions that fit
  int64_t window;  // positions that a query sees, itself included; 0 = all of them
  ffi::Tensor key;
  ffi::Tensor value;
};

/*! A checkpoint that is being read into a state: prepared and not finished. */
struct Import {
  int64_t length;
  int64_t written;
  std::vector<bool> done;  // page groups that have come
};

/*! The state of one sequence, driven by TVM's KV state interface and by functions of ours. */
class Gemma4KVStateObj final : public KVStateObj {
 public:
  /*!
   * Allocate the tensors, filled with zeros.
   * \param capacity tokens of the context
   * \param chunk most tokens of one forward
   * \param layout heads, head_dim, rows (0: the whole context) and window (0: none) of each layer
   * \param rotary head_dim, pairs and the bits of the float64 theta of each rotary kind
   * \param package names the package whose model writes the keys and values
   */
  Gemma4KVStateObj(int64_t capacity, int64_t chunk, const ffi::Shape& layout,
                   const ffi::Shape& rotary, DLDataType dtype, DLDevice device,
                   std::string package);

  // --- Sequence ---

  void Clear() final;
  void AddSequence(int64_t id) final;
  void RemoveSequence(int64_t id) final;
  void ForkSequence(int64_t parent, int64_t child, int64_t position) final;
  void PopN(int64_t id, int32_t count) final;
  /*! Take back the last `count` tokens, if the rings still hold what the token before them attends
   * to. */
  void Pop(int64_t count);

  // --- Forward ---

  void BeginForward(const ffi::Shape& ids, const ffi::Shape& counts,
                    const ffi::Optional<ffi::Shape>& tree) final;
  /*! Announce `count` new tokens: write their positions and rotary values to the device. */
  void Begin(int64_t count);
  void EndForward() final;

  // --- What kernels read and write ---

  const LayerCache& Layer(int64_t slot) const;
  const std::vector<LayerCache>& layers() const { return layers_; }
  const ffi::Tensor& positions() const { return positions_; }
  const ffi::Tensor& rotary() const { return rotary_; }
  int64_t length() const { return length_; }
  int64_t sequence() const { return sequence_; }

  // --- For a caller that runs steps by itself ---

  /*! The contents of `positions` for a forward of `count` tokens from position `first` on. */
  static std::array<int32_t, 4> PositionValues(int64_t first, int64_t count);
  /*! Write one position's row of `rotary`: `rotary_pairs()` cosines and sines, by turns. */
  void RotaryValues(int64_t position, float* row) const;
  int64_t rotary_pairs() const { return static_cast<int64_t>(inverse_frequencies_.size()); }
  int64_t capacity() const { return capacity_; }
  bool has_sequence() const { return has_sequence_; }
  /*! Counts the calls that change the sequence, but for the ends of forwards. */
  uint32_t version() const { return version_; }
  /*! How many tokens from position `length()` on may be written, so that all that the token at
   * `length()` attends to is still there afterwards. */
  int64_t Room() const;
  /*! Note that rows of positions below `length` were written without a forward of this state. */
  void NoteWritten(int64_t length);

  // --- For checkpoints (kv_checkpoint.cc) ---

  int64_t chunk() const { return chunk_; }
  DLDataType dtype() const { return dtype_; }
  const std::string& package() const { return package_; }
  const std::vector<float>& inverse_frequencies() const { return inverse_frequencies_; }
  int64_t written() const { return written_; }
  bool is_pending() const { return pending_ > 0; }
  /*! The import that was prepared, or none; nothing can be forwarded before it is finished. */
  std::optional<Import>& import() { return import_; }
  /*! Empty the sequence and wait for `groups` page groups. */
  void PrepareImport(int64_t id, int64_t length, int64_t written, size_t groups);
  void NoteImported(size_t group);
  void FinishImport();

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("gemma4_compile.KVState", Gemma4KVStateObj, KVStateObj);

 private:
  void Restart();
  void CheckSequence(int64_t id) const;
  int64_t ShortestLengthHeld() const;
  void UploadRotary(int64_t count);

  const int64_t capacity_;                        // tokens that the context holds
  const int64_t chunk_;                           // most tokens of one forward
  const DLDataType dtype_;                        // of keys and values
  const std::string package_;                     // whose model writes them
  const std::vector<float> inverse_frequencies_;  // of all rotary kinds
  std::vector<LayerCache> layers_;
  ffi::Tensor positions_;  // int32[4] = {first new position, count, first + count, 0}
  ffi::Tensor rotary_;     // float32[chunk, pairs, 2] = cos and sin of each new position's angles
  std::vector<float> first_rotary_;  // rows of the first positions
  std::vector<float> host_rotary_;
  bool has_sequence_ = false;
  int64_t sequence_ = 0;
  int64_t length_ = 0;   // tokens whose forward has ended
  int64_t written_ = 0;  // greatest length begun: what popped tokens overwrote stays overwritten
  int64_t pending_ = 0;  // tokens between begin_forward and end_forward
  uint32_t version_ = 0;
  std::optional<Import> import_;
};

}  // namespace gemma4_compile

#endif  // GEMMA4_COMPILE_KV_STATE_H_
