#include "kv_page_groups.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>

// Each page group is a buffer on the device, a copy in the memory of the instance and one in
// JavaScript, one group after the other.
#ifndef GEMMA4_GROUP_BYTES
#define GEMMA4_GROUP_BYTES (int64_t{16} << 20)
#endif
namespace gemma4_compile {

namespace {

constexpr const char* kFormat = "gemma4_compile.kv_checkpoint";
constexpr int64_t kFormatVersion = 1;
constexpr size_t kMaxMetadataBytes = size_t{1} << 20;
constexpr int kMaxMetadataDepth = 16;

int64_t RowBytes(const LayerCache& layer) {
  const ffi::Shape shape = layer.key.shape();
  return shape[1] * shape[2] * layer.key.dtype().bits / 8;
}

}  // namespace

std::vector<PageGroup> PageGroups(const Gemma4KVStateObj& state, int64_t length, int64_t written) {
  std::vector<PageGroup> groups;
  for (size_t index = 0; index < state.layers().size(); ++index) {
    const LayerCache& layer = state.layers()[index];
    const int64_t live = LiveRows(layer, length, written);
    const ffi::Shape shape = layer.key.shape();
    const int64_t row_bytes = RowBytes(layer);
    const int64_t most = std::max<int64_t>(1, GEMMA4_GROUP_BYTES / (2 * row_bytes));
    for (int64_t row = 0; row < live; row += most) {
      const int64_t rows = std::min(most, live - row);
      groups.push_back(PageGroup{static_cast<int64_t>(index), row, rows * 2 * row_bytes,
                                 ffi::Shape({2, rows, shape[1], shape[2]})});
    }
  }
  return groups;
}

namespace {

/*! FNV-1a over numbers. */
class Hash {
 public:
  Hash& Add(int64_t number) {
    for (int byte = 0; byte < 8; ++byte) {
      value_ = (value_ ^ (static_cast<uint64_t>(number) >> (8 * byte) & 0xff)) * 0x100000001b3ull;
    }
    return *this;
  }

  std::string Text() const {
    char text[17];
    std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(value_));
    return text;
  }

 private:
  uint64_t value_ = 0xcbf29ce484222325ull;
};

Hash LayoutHash(const Gemma4KVStateObj& state) {
  Hash hash;
  hash.Add(kFormatVersion).Add(state.capacity()).Add(state.chunk()).Add(state.dtype().bits);
  for (const char byte : state.package()) hash.Add(byte);
  for (const LayerCache& layer : state.layers()) {
    const ffi::Shape shape = layer.key.shape();
    hash.Add(shape[0]).Add(shape[1]).Add(shape[2]).Add(layer.window);
  }
  for (const float frequency : state.inverse_frequencies()) {
    uint32_t bits;
    std::memcpy(&bits, &frequency, sizeof(bits));
    hash.Add(bits);
  }
  return hash;
}

/*! Over the numbers that no group's size shows. */
std::string LengthHash(const Gemma4KVStateObj& state, int64_t length, int64_t written) {
  return LayoutHash(state).Add(length).Add(written).Text();
}

std::string DtypeName(const Gemma4KVStateObj& state) {
  return "float" + std::to_string(state.dtype().bits);
}

// --- Metadata ---

json::Array ShapeToJson(const ffi::Shape& shape) {
  json::Array sizes;
  for (const int64_t size : shape) sizes.push_back(size);
  return sizes;
}

}  // namespace

/*! `layer_begin`, `layer_end`, `group_index`, `shape`, `dtype`, `seq_length`, `layout_hash` and
 * `page_size` are the client's; it checkpoints at multiples of the page size. */
json::Object Metadata(const Gemma4KVStateObj& state, const Sequence& sequence,
                      const std::vector<PageGroup>& groups) {
  json::Array described;
  for (size_t index = 0; index < groups.size(); ++index) {
    json::Object group;
    group.Set(ffi::String("group_index"), static_cast<int64_t>(index));
    group.Set(ffi::String("layer_begin"), groups[index].layer);
    group.Set(ffi::String("layer_end"), groups[index].layer + 1);
    group.Set(ffi::String("first_row"), groups[index].first_row);
    group.Set(ffi::String("shape"), ShapeToJson(groups[index].shape));
    group.Set(ffi::String("dtype"), ffi::String(DtypeName(state)));
    described.push_back(group);
  }
  json::Object metadata;
  metadata.Set(ffi::String("format"), ffi::String(kFormat));
  metadata.Set(ffi::String("format_version"), kFormatVersion);
  metadata.Set(ffi::String("package"), ffi::String(state.package()));
  metadata.Set(ffi::String("context_length"), state.capacity());
  metadata.Set(ffi::String("prefill_chunk"), state.chunk());
  metadata.Set(ffi::String("dtype"), ffi::String(DtypeName(state)));
  metadata.Set(ffi::String("layout_hash"), ffi::String(LayoutHash(state).Text()));
  metadata.Set(ffi::String("page_size"), int64_t{1});
  metadata.Set(ffi::String("seq_id"), *sequence.id);
  metadata.Set(ffi::String("seq_length"), sequence.length);
  metadata.Set(ffi::String("written"), sequence.written);
  metadata.Set(ffi::String("length_hash"),
               ffi::String(LengthHash(state, sequence.length, sequence.written)));
  metadata.Set(ffi::String("groups"), described);
  return metadata;
}

namespace {

/*! The parser calls itself for what is nested: bound that before it sees the text. Brackets in
 * strings open and close nothing. */
bool IsShallow(const std::string& text) {
  int depth = 0;
  bool is_string = false;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '"') is_string = !is_string;
    if (is_string) {
      if (c == '\\') ++at;  // what follows it is a letter, be it a quotation mark
      continue;
    }
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (depth < 0 || depth > kMaxMetadataDepth) return false;
  }
  return true;
}

}  // namespace

std::optional<json::Object> ParseMetadata(const ffi::String& text) {
  if (text.size() > kMaxMetadataBytes || !IsShallow(std::string(text))) return std::nullopt;
  ffi::String error;
  const json::Value value = json::Parse(text, &error);
  return error.empty() ? value.as<json::Object>() : std::nullopt;
}

std::optional<int64_t> Integer(const json::Object& object, const char* name) {
  const auto found = object.find(ffi::String(name));
  if (found == object.end()) return std::nullopt;
  return (*found).second.as<int64_t>();
}

namespace {

std::optional<std::string> Text(const json::Object& object, const char* name) {
  const auto found = object.find(ffi::String(name));
  if (found == object.end()) return std::nullopt;
  const std::optional<ffi::String> text = (*found).second.as<ffi::String>();
  if (!text) return std::nullopt;
  return std::string(*text);
}

std::optional<json::Array> List(const json::Object& object, const char* name) {
  const auto found = object.find(ffi::String(name));
  if (found == object.end()) return std::nullopt;
  return (*found).second.as<json::Array>();
}

/*! What is wrong with a checkpoint's group; empty if it is the one that this state would write. */
std::string CheckGroup(const Gemma4KVStateObj& state, const ffi::Any& value, const PageGroup& group,
                       int64_t index) {
  const std::optional<json::Object> object = value.as<json::Object>();
  if (!object) return "is no object";
  if (Integer(*object, "group_index") != index) return "has another index";
  if (Integer(*object, "first_row") != group.first_row) return "begins at another row";
  if (Text(*object, "dtype") != DtypeName(state)) return "has another dtype";
  const std::optional<json::Array> shape = List(*object, "shape");
  if (!shape || shape->size() != group.shape.size()) return "has another shape";
  for (size_t axis = 0; axis < shape->size(); ++axis) {
    if ((*shape)[axis].as<int64_t>() != group.shape[axis]) return "has another shape";
  }
  return "";
}

}  // namespace

std::string CheckMetadata(const Gemma4KVStateObj& state, const json::Object& metadata) {
  const auto differs = [](const char* what, const std::string& expected, const std::string& found) {
    return std::string(what) + ": expected " + expected + ", found " + found;
  };
  const std::optional<std::string> format = Text(metadata, "format");
  if (format != kFormat) return differs("checkpoint format", kFormat, Shown(format));
  const std::optional<int64_t> version = Integer(metadata, "format_version");
  if (version != kFormatVersion) {
    return differs("checkpoint version", std::to_string(kFormatVersion), Shown(version));
  }
  const std::optional<std::string> package = Text(metadata, "package");
  if (package != state.package()) {
    return differs("the checkpoint is of another package", state.package(), Shown(package));
  }
  const std::optional<int64_t> capacity = Integer(metadata, "context_length");
  if (capacity != state.capacity()) {
    return differs("context length", std::to_string(state.capacity()), Shown(capacity));
  }
  const std::optional<int64_t> chunk = Integer(metadata, "prefill_chunk");
  if (chunk != state.chunk()) {
    return differs("prefill chunk", std::to_string(state.chunk()), Shown(chunk));
  }
  const std::optional<std::string> dtype = Text(metadata, "dtype");
  if (dtype != DtypeName(state)) return differs("cache dtype", DtypeName(state), Shown(dtype));
  const std::optional<std::string> hash = Text(metadata, "layout_hash");
  const std::string expected = LayoutHash(state).Text();
  if (hash != expected) return differs("cache layout", expected, Shown(hash));
  const std::optional<int64_t> length = Integer(metadata, "seq_length");
  const std::optional<int64_t> written = Integer(metadata, "written");
  if (!length || *length < 0 || *length > state.capacity()) {
    return differs("sequence length", "0 to " + std::to_string(state.capacity()), Shown(length));
  }
  if (!written || *written < *length || *written > state.capacity()) {
    return differs("written positions",
                   std::to_string(*length) + " to " + std::to_string(state.capacity()),
                   Shown(written));
  }
  if (Text(metadata, "length_hash") != LengthHash(state, *length, *written)) {
    return "the checkpoint is damaged: its lengths are not those that it was written with";
  }
  const std::vector<PageGroup> groups = PageGroups(state, *length, *written);
  const std::optional<json::Array> described = List(metadata, "groups");
  if (!described || described->size() != groups.size()) {
    return differs("page groups", std::to_string(groups.size()),
                   described ? std::to_string(described->size()) : "none");
  }
  for (size_t index = 0; index < groups.size(); ++index) {
    const std::string wrong =
        CheckGroup(state, (*described)[index], groups[index], static_cast<int64_t>(index));
    if (!wrong.empty()) return "page group " + std::to_string(index) + " " + wrong;
  }
  return "";
}

// --- Copies ---

std::string CheckTensor(const Gemma4KVStateObj& state, const PageGroup& group,
                        const ffi::Tensor& tensor) {
  const DLDataType dtype = tensor.dtype();
  const DLDevice device = tensor.device(), own = state.positions().device();
  const bool fits = dtype.code == state.dtype().code && dtype.bits == state.dtype().bits &&
                    dtype.lanes == 1 && device.device_type == own.device_type &&
                    device.device_id == own.device_id && tensor.IsContiguous() &&
                    tensor.ndim() == static_cast<int32_t>(group.shape.size()) &&
                    std::equal(group.shape.begin(), group.shape.end(), tensor.shape().begin());
  if (fits) return "";
  std::ostringstream text;
  text << "expected a tensor of shape (" << group.shape[0] << ", " << group.shape[1] << ", "
       << group.shape[2] << ", " << group.shape[3] << "), " << DtypeName(state)
       << ", on the state's device";
  return text.str();
}

void CopyGroup(const Sequence& sequence, const PageGroup& group, const ffi::Tensor& tensor,
               bool is_import) {
  const LayerCache& layer = sequence.layers[static_cast<size_t>(group.layer)];
  const int64_t row_bytes = RowBytes(layer);
  const ffi::Shape rows({group.rows(), group.shape[2], group.shape[3]});
  for (int64_t half = 0; half < 2; ++half) {
    const ffi::Tensor& own = half == 0 ? layer.key : layer.value;
    const int64_t own_byte = group.first_row * row_bytes;
    const int64_t page_byte = half * group.rows() * row_bytes;
    if (is_import) {
      CopyRows(tensor, page_byte, own, own_byte, rows);
    } else {
      CopyRows(own, own_byte, tensor, page_byte, rows);
    }
  }
}

}  // namespace gemma4_compile
