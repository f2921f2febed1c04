/*!
 * The parts of a KV state's checkpoint: which rows it holds, how they are described, and their
 * copies to and from a caller's tensors.
 */
#ifndef GEMMA4_COMPILE_KV_PAGE_GROUPS_H_
#define GEMMA4_COMPILE_KV_PAGE_GROUPS_H_

#include <tvm/ffi/container/map.h>
#include <tvm/ffi/extra/json.h>

#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "kv_state.h"

namespace gemma4_compile {

namespace json = tvm::ffi::json;

/*! Consecutive rows of one layer: a tensor of shape (2, rows, heads, head_dim), keys first. */
struct PageGroup {
  int64_t layer;
  int64_t first_row;
  int64_t bytes;
  ffi::Shape shape;

  int64_t rows() const { return shape[1]; }
};

/*! All that a sequence of `length` tokens knows: rows of full layers up to the length, and rings whole
 * once they have wrapped, so that as many tokens can be taken back as before. */
std::vector<PageGroup> PageGroups(const Gemma4KVStateObj& state, int64_t length, int64_t written);

/*! The description of a checkpoint that the client stores. */
json::Object Metadata(const Gemma4KVStateObj& state, const Sequence& sequence,
                      const std::vector<PageGroup>& groups);

/*! Read a description; none if it is no JSON object of reasonable size. */
std::optional<json::Object> ParseMetadata(const ffi::String& text);

/*! What is wrong with a checkpoint for this state; empty if nothing is. */
std::string CheckMetadata(const Gemma4KVStateObj& state, const json::Object& metadata);

/*! What is wrong with a caller's tensor for a group; empty if nothing is. */
std::string CheckTensor(const Gemma4KVStateObj& state, const PageGroup& group,
                        const ffi::Tensor& tensor);

/*! Copy a group's keys and values out of a sequence, or into it. */
void CopyGroup(const Sequence& sequence, const PageGroup& group, const ffi::Tensor& tensor,
               bool is_import);

/*! An integer of a description, if it is there. */
std::optional<int64_t> Integer(const json::Object& object, const char* name);

template <typename T>
std::string Shown(const std::optional<T>& value) {
  if (!value) return "none";
  std::ostringstream text;
  text << *value;
  return text.str().substr(0, 100);
}

}  // namespace gemma4_compile

#endif  // GEMMA4_COMPILE_KV_PAGE_GROUPS_H_
