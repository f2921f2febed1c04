/*!
 * One sequence of a KV state: its slot, which has keys and values of every layer, and how far it
 * has come.
 *
 * A layer's key and value tensors hold position p in row p % rows. Full layers have a row for every
 * position of the context; sliding layers are rings of at least window - 1 + chunk rows, so that a
 * whole chunk may be written before the first of its queries reads the window before it.
 *
 * Where a binding does not hold all rows of a full layer, they are in parts of equal size, each with
 * an entry of its own: position p is in row p - first of the part whose rows begin with `first`.
 */
#ifndef GEMMA4_COMPILE_KV_SEQUENCE_H_
#define GEMMA4_COMPILE_KV_SEQUENCE_H_

#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "library.h"

namespace gemma4_compile {

/*! Keys and values of one layer, or of a part of its positions: (rows, heads, head_dim). */
struct LayerCache {
  int64_t first;   // position in the first row; 0 but for later parts of a full layer
  int64_t rows;    // positions that fit
  int64_t window;  // positions that a query sees, itself included; 0 = all of them
  ffi::Tensor key;
  ffi::Tensor value;
};

/*! A checkpoint that is being read into a sequence: prepared and not finished. */
struct Import {
  int64_t length;
  int64_t written;
  std::vector<bool> done;  // page groups that have come
};

/*! A slot of the state, and the sequence that has it. */
struct Sequence {
  std::vector<LayerCache> layers;  // they stay for the sequence that is next to have the slot
  std::optional<int64_t> id;       // none: the slot is free
  int64_t length = 0;              // tokens whose forward has ended
  int64_t written = 0;  // greatest length begun: what popped tokens overwrote stays overwritten
  int64_t pending = 0;  // tokens between begin_forward and end_forward
  int64_t floor = 0;    // of a resumed one: fewer tokens, besides none, cannot be left
  std::optional<Import> import;

  /*! Forget all tokens. */
  void Restart();

  /*! Take back the last `count` tokens; an error if the rings have not all that the token before
   * them attends to. */
  void Pop(int64_t count);

  /*! Hold what `parent` would hold with its first `position` tokens alone; an error, and no change,
   * where it could not be taken back to them. */
  void CopyFrom(const Sequence& parent, int64_t position);

  /*! Hold `length` tokens whose rows were written into it, of sliding layers those that tokens from
   * position `shortest` on attend to; an error where there are tokens already. */
  void Resume(int64_t length, int64_t shortest);

  /*! The fewest tokens, besides none, that can be left without losing a key that the next one
   * attends to. */
  int64_t ShortestLengthHeld() const;
};

/*! Rows of a layer or part that mean something after `length` tokens: all rows of a ring that has
 * wrapped, so that as many tokens can be taken back as before. */
int64_t LiveRows(const LayerCache& layer, int64_t length, int64_t written);

/*! Copy rows (rows, heads, head_dim) between tensors of one dtype, from and to these bytes on. */
void CopyRows(const ffi::Tensor& from, int64_t from_byte, const ffi::Tensor& to, int64_t to_byte,
              const ffi::Shape& shape);

}  // namespace gemma4_compile

#endif  // GEMMA4_COMPILE_KV_SEQUENCE_H_
