/*!
 * Device memory of keys and values.
 */
#ifndef GEMMA4_COMPILE_KV_MEMORY_H_
#define GEMMA4_COMPILE_KV_MEMORY_H_

#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>

#include <cstdint>
#include <vector>

#include "kv_sequence.h"

namespace gemma4_compile {

/*! Keys and values of one layer, or of a part of it, of all slots: (slots, rows, heads, head_dim),
 * of which a slot may not use the last rows. */
struct LayerPool {
  ffi::Tensor key;
  ffi::Tensor value;
};

/*! An entry of the cache layout: what each slot has of a layer, or of a part of one. */
struct CacheEntry {
  int64_t first;
  int64_t rows;
  int64_t pool_rows;  // from one slot to the next
  int64_t window;
  int64_t heads;
  int64_t head_dim;
};

/*!
 * The entries of a layout (see Gemma4KVStateObj), checked.
 * \param aligned a slot's keys of full layers begin at a multiple of so many bytes; 0 for any
 */
std::vector<CacheEntry> ReadLayout(const ffi::Shape& layout, int64_t capacity, int64_t chunk,
                                   DLDataType dtype, int64_t aligned);

/*! A tensor, its values undefined; RuntimeError where there is no room. */
ffi::Tensor AllocateTensor(const ffi::Shape& shape, DLDataType dtype, DLDevice device);

/*! Copy the first `shape` elements of a tensor from host memory. */
void Upload(const void* host, const ffi::Shape& shape, const ffi::Tensor& to,
            int64_t byte_offset = 0);

/*! Whether kernels of a device take memory within a larger one by its address. */
bool TakesAddresses(DLDevice device);

/*! Memory of one entry for one slot, filled with zeros. */
LayerCache MakeCache(const CacheEntry& entry, DLDataType dtype, DLDevice device);

/*! Memory of one entry for all slots. */
LayerPool MakePool(const CacheEntry& entry, int64_t slots, DLDataType dtype, DLDevice device);

/*! What a slot has of a pool, filled with zeros. */
LayerCache SlotOf(const LayerPool& pool, const CacheEntry& entry, int64_t slot);

}  // namespace gemma4_compile

#endif  // GEMMA4_COMPILE_KV_MEMORY_H_
