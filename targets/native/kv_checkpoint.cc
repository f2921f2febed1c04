/*!
 * Checkpoints of a KV state, for the client's resumable generation: rows are copied into tensors of
 * the caller's (page groups), which it stores, and back into a state of the same package, so that
 * both sequences go on alike. The functions have the names of TVM's paged cache, whose own refuse our state by
 * a throw, and so they take their place.
 *
 * Nothing here throws for what a caller or a file can get wrong: a throw would end the wasm
 * instance. An error is returned, and the client then replays the tokens instead; the state is as
 * it was before the call.
 */
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "kv_page_groups.h"

// All page groups lie in the page's memory until the client has stored them.
#ifndef GEMMA4_CHECKPOINT_BYTES
#define GEMMA4_CHECKPOINT_BYTES (int64_t{1} << 30)
#endif

namespace gemma4_compile {

namespace {

/*! What a function returns: a value, or what is wrong. */
struct Answer {
  ffi::Any value;
  std::string error;
};

template <typename... Parts>
Answer Refuse(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return Answer{ffi::Any(), text.str()};
}

/*! The arguments after the state, whose types are checked. */
struct Arguments {
  const ffi::AnyView* values;
  int32_t count;

  std::optional<int64_t> IntegerAt(int32_t index) const {
    return index < count ? values[index].as<int64_t>() : std::nullopt;
  }
  /*! A tensor, never a null one, which the runtime takes for one as well. */
  std::optional<ffi::Tensor> TensorAt(int32_t index) const {
    const std::optional<ffi::Tensor> found =
        index < count ? values[index].as<ffi::Tensor>() : std::nullopt;
    return found && found->defined() ? found : std::nullopt;
  }
  std::optional<ffi::String> TextAt(int32_t index) const {
    return index < count ? values[index].try_cast<ffi::String>() : std::nullopt;
  }
};

/*! The sequence that the first argument names, or null with what is wrong. */
Sequence* FindSequence(Gemma4KVStateObj& state, const Arguments& arguments, Answer* answer) {
  const std::optional<int64_t> id = arguments.IntegerAt(0);
  Sequence* found = id ? state.Find(*id) : nullptr;
  if (found == nullptr) *answer = Refuse("there is no sequence ", Shown(id), " in this state");
  return found;
}

/*! The same, where it can be exported now. */
Sequence* FindExported(Gemma4KVStateObj& state, const Arguments& arguments, Answer* answer) {
  Sequence* found = FindSequence(state, arguments, answer);
  if (found == nullptr) return nullptr;
  if (found->pending > 0) *answer = Refuse("a checkpoint between begin_forward and end_forward");
  if (found->import) *answer = Refuse("a checkpoint of a state that is being imported");
  if (found->floor > 0) *answer = Refuse("a checkpoint of a state that was resumed from rows");
  return answer->error.empty() ? found : nullptr;
}

/*! The same, where an import into it was prepared. */
Sequence* FindImported(Gemma4KVStateObj& state, const Arguments& arguments, Answer* answer) {
  Sequence* found = FindSequence(state, arguments, answer);
  if (found != nullptr && !found->import) *answer = Refuse("no import was prepared");
  return answer->error.empty() ? found : nullptr;
}

Answer GetCheckpointMetadata(Gemma4KVStateObj& state, const Arguments& arguments) {
  Answer answer;
  const Sequence* sequence = FindExported(state, arguments, &answer);
  if (sequence == nullptr) return answer;
  const std::vector<PageGroup> groups = PageGroups(state, sequence->length, sequence->written);
  int64_t bytes = 0;
  for (const PageGroup& group : groups) bytes += group.bytes;
  if (bytes > GEMMA4_CHECKPOINT_BYTES) {
    return Refuse("a checkpoint of ", sequence->length, " tokens takes ", bytes,
                  " bytes of the page's memory, and at most ", GEMMA4_CHECKPOINT_BYTES,
                  " are taken: the tokens are kept and forwarded again instead");
  }
  answer.value = json::Stringify(Metadata(state, *sequence, groups));
  return answer;
}

/*! Copy the group and the tensor that the arguments name, of a sequence of this length. */
Answer CopyNamedGroup(Gemma4KVStateObj& state, const Sequence& sequence, const Arguments& arguments,
                      int64_t length, int64_t written, bool is_import) {
  const std::vector<PageGroup> groups = PageGroups(state, length, written);
  const std::optional<int64_t> index = arguments.IntegerAt(1);
  if (!index || *index < 0 || *index >= static_cast<int64_t>(groups.size())) {
    return Refuse("page group: expected 0 to ", static_cast<int64_t>(groups.size()) - 1, ", found ",
                  Shown(index));
  }
  const std::optional<ffi::Tensor> tensor = arguments.TensorAt(2);
  if (!tensor) return Refuse("page group ", *index, ": expected a tensor");
  const PageGroup& group = groups[static_cast<size_t>(*index)];
  const std::string wrong = CheckTensor(state, group, *tensor);
  if (!wrong.empty()) return Refuse("page group ", *index, ": ", wrong);
  CopyGroup(sequence, group, *tensor, is_import);
  return {};
}

Answer ExportPageGroup(Gemma4KVStateObj& state, const Arguments& arguments) {
  Answer answer;
  const Sequence* sequence = FindExported(state, arguments, &answer);
  if (sequence == nullptr) return answer;
  return CopyNamedGroup(state, *sequence, arguments, sequence->length, sequence->written, false);
}

Answer PrepareImport(Gemma4KVStateObj& state, const Arguments& arguments) {
  const std::optional<int64_t> id = arguments.IntegerAt(0);
  if (!id || (state.Find(*id) == nullptr && !state.HasFreeSlot())) {
    return Refuse("cannot import into sequence ", Shown(id), " of this state");
  }
  const std::optional<ffi::String> text = arguments.TextAt(1);
  const std::optional<json::Object> metadata = text ? ParseMetadata(*text) : std::nullopt;
  if (!metadata) return Refuse("the checkpoint's description is damaged: expected a JSON object");
  const std::string wrong = CheckMetadata(state, *metadata);
  if (!wrong.empty()) return Refuse(wrong);
  const int64_t length = *Integer(*metadata, "seq_length");
  const int64_t written = *Integer(*metadata, "written");
  const size_t groups = PageGroups(state, length, written).size();
  state.PrepareImport(*id, Import{length, written, std::vector<bool>(groups, false)});
  return {};
}

Answer ImportPageGroup(Gemma4KVStateObj& state, const Arguments& arguments) {
  Answer answer;
  Sequence* sequence = FindImported(state, arguments, &answer);
  if (sequence == nullptr) return answer;
  const Import& import = *sequence->import;
  answer = CopyNamedGroup(state, *sequence, arguments, import.length, import.written, true);
  if (answer.error.empty()) {
    state.NoteImported(*sequence, static_cast<size_t>(*arguments.IntegerAt(1)));
  }
  return answer;
}

Answer FinishImport(Gemma4KVStateObj& state, const Arguments& arguments) {
  Answer answer;
  Sequence* sequence = FindImported(state, arguments, &answer);
  if (sequence == nullptr) return answer;
  const std::vector<bool>& done = sequence->import->done;
  const auto missing = std::find(done.begin(), done.end(), false);
  if (missing != done.end()) {
    return Refuse("page group ", missing - done.begin(), " of ", done.size(), " is missing");
  }
  state.FinishImport(*sequence);
  return answer;
}

Answer GetSequenceLength(Gemma4KVStateObj& state, const Arguments& arguments) {
  Answer answer;
  const Sequence* sequence = FindSequence(state, arguments, &answer);
  if (sequence != nullptr) answer.value = sequence->length;
  return answer;
}

/*! Call a function for arguments that begin with a state, in the runtime's C convention. */
int Run(Answer (*function)(Gemma4KVStateObj&, const Arguments&), const TVMFFIAny* args,
        int32_t count, TVMFFIAny* result) {
  TVM_FFI_SAFE_CALL_BEGIN();
  const auto* values = reinterpret_cast<const ffi::AnyView*>(args);
  const Gemma4KVStateObj* state = count > 0 ? values[0].as<Gemma4KVStateObj>() : nullptr;
  const Answer answer = state == nullptr ? Refuse("expected a gemma4_compile.KVState")
                                         : function(const_cast<Gemma4KVStateObj&>(*state),
                                                    Arguments{values + 1, count - 1});
  if (!answer.error.empty()) {
    TVMFFIErrorSetRaisedFromCStr("ValueError", answer.error.c_str());
    return -1;
  }
  *reinterpret_cast<ffi::Any*>(result) = answer.value;
  TVM_FFI_SAFE_CALL_END();
}

}  // namespace

#define GEMMA4_CHECKPOINT_FUNCTION(name, function)                                                 \
  extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_gemma4_kv_##name(void*, const TVMFFIAny* args,       \
                                                               int32_t count, TVMFFIAny* result) { \
    return Run(function, args, count, result);                                                     \
  }                                                                                                \
  GEMMA4_REPLACE("vm.builtin.attention_kv_cache_" #name, __tvm_ffi_gemma4_kv_##name)

// A native library shares its process with TVM, whose functions stay what they are.
#ifdef __wasm__
#define GEMMA4_REPLACE(name, function)                                                            \
  TVM_FFI_STATIC_INIT_BLOCK() {                                                                   \
    ffi::Function::SetGlobal(name, ffi::Function::FromExternC(nullptr, function, nullptr), true); \
  }
#else
#define GEMMA4_REPLACE(name, function)
#endif

GEMMA4_CHECKPOINT_FUNCTION(get_checkpoint_metadata, GetCheckpointMetadata)
GEMMA4_CHECKPOINT_FUNCTION(export_page_group, ExportPageGroup)
GEMMA4_CHECKPOINT_FUNCTION(prepare_import, PrepareImport)
GEMMA4_CHECKPOINT_FUNCTION(import_page_group, ImportPageGroup)
GEMMA4_CHECKPOINT_FUNCTION(finish_import, FinishImport)
GEMMA4_CHECKPOINT_FUNCTION(get_sequence_length, GetSequenceLength)

}  // namespace gemma4_compile
