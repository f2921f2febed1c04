#include "kv_memory.h"

#include <algorithm>

namespace gemma4_compile {

namespace {

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

/*! The shape of one slot's keys. */
ffi::Shape ShapeOf(const CacheEntry& entry) {
  return ffi::Shape({entry.rows, entry.heads, entry.head_dim});
}

int64_t BytesOf(const ffi::Shape& shape, DLDataType dtype) {
  return static_cast<int64_t>(ffi::GetDataSize(static_cast<size_t>(shape.Product()), dtype));
}

/*! Memory within a tensor, from a byte on, whose address is the view's; it keeps the tensor alive. */
ffi::Tensor View(const ffi::Tensor& whole, const ffi::Shape& shape, int64_t byte_offset) {
  const ffi::Tensor view =
      CallRuntime("runtime.TVMTensorCreateView", whole, shape, whole.dtype(), byte_offset)
          .cast<ffi::Tensor>();
  // Kernels take no offset: what they read begins where the tensor does.
  DLTensor* own = const_cast<DLTensor*>(view.GetDLTensorPtr());
  own->data = static_cast<char*>(own->data) + own->byte_offset;
  own->byte_offset = 0;
  return view;
}

}  // namespace

std::vector<CacheEntry> ReadLayout(const ffi::Shape& layout, int64_t capacity, int64_t chunk,
                                   DLDataType dtype, int64_t aligned) {
  GEMMA4_REQUIRE(layout.size() % 4 == 0, ValueError)
      << "cache layout: expected 4 numbers per layer, found " << layout.size() << " numbers";
  std::vector<CacheEntry> entries;
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
    entries.push_back({part * rows, rows, rows, window, heads, head_dim});
    part = part + 1 < parts ? part + 1 : 0;
  }
  GEMMA4_REQUIRE(part == 0, ValueError)
      << "cache layout: the last layer has " << part << " of its parts";
  if (aligned == 0) return entries;
  // Kernels of one library take the same number of rows for all full layers. Rings have a multiple of
  // 32 rows.
  const bool has_gaps = std::any_of(entries.begin(), entries.end(), [&](const CacheEntry& entry) {
    return BytesOf(ShapeOf(entry), dtype) % aligned != 0;
  });
  for (size_t i = 0; has_gaps && i < entries.size(); ++i) {
    if (layout[4 * i + 2] == 0) {
      entries[i].pool_rows = (entries[i].rows + aligned - 1) / aligned * aligned;
    }
  }
  return entries;
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

void Upload(const void* host, const ffi::Shape& shape, const ffi::Tensor& to, int64_t byte_offset) {
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

bool TakesAddresses(DLDevice device) {
  return device.device_type == kDLCPU || device.device_type == kDLCUDA;
}

LayerCache MakeCache(const CacheEntry& entry, DLDataType dtype, DLDevice device) {
  const LayerPool own{AllocateTensor(ShapeOf(entry), dtype, device),
                      AllocateTensor(ShapeOf(entry), dtype, device)};
  FillWithZeros(own.key);
  FillWithZeros(own.value);
  return {entry.first, entry.rows, entry.window, own.key, own.value};
}

LayerPool MakePool(const CacheEntry& entry, int64_t slots, DLDataType dtype, DLDevice device) {
  const ffi::Shape shape({slots, entry.pool_rows, entry.heads, entry.head_dim});
  return {AllocateTensor(shape, dtype, device), AllocateTensor(shape, dtype, device)};
}

LayerCache SlotOf(const LayerPool& pool, const CacheEntry& entry, int64_t slot) {
  const ffi::Shape before({slot, entry.pool_rows, entry.heads, entry.head_dim});
  const int64_t begin = BytesOf(before, pool.key.dtype());
  LayerCache own{entry.first, entry.rows, entry.window, View(pool.key, ShapeOf(entry), begin),
                 View(pool.value, ShapeOf(entry), begin)};
  FillWithZeros(own.key);
  FillWithZeros(own.value);
  return own;
}

}  // namespace gemma4_compile
