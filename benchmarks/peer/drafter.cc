// What a round of guesses costs in llama.cpp, with its own drafter. One JSON object on stdout.
//
// usage: drafter MODEL.gguf DRAFTER.gguf CONTEXT REPEATS ROWS[,ROWS...] GUESSES[,GUESSES...] BACKEND.so...
//
// After CONTEXT tokens: `step_ms` of ROWS tokens in one batch with all their logits on the host, which is what checking
// guesses takes, and `round_ms` of a round: GUESSES tokens drafted one after the other, as common/speculative.cpp of
// llama.cpp does for drafters that read the model's own keys and values (the most likely token each, found on the host),
// then all of them and the token before them in one batch, greedily compared, and their rows taken back. Random weights
// guess wrong, so a round says one token here; its time does not depend on that.
//
// Made for llama.cpp v0.7.0 as the wheel cyllama-vulkan 0.7.0 has it, with the headers of v0.5.0; of the parameters,
// whose structure has grown between the two, it sets what stands at the places below.
//   g++ -O2 -std=c++17 drafter.cc -I llama.cpp/include -I llama.cpp/ggml/include LIBRARIES -o drafter
#include <ggml-backend.h>
#include <llama.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

// Of llama.cpp's src/llama-ext.h.
void llama_set_embeddings_nextn(llama_context* context, bool value, bool masked);
float* llama_get_embeddings_nextn_ith(llama_context* context, int32_t i);
llama_context* llama_get_ctx_other(llama_context* context);

namespace {

using Clock = std::chrono::steady_clock;

/*! A structure of the library's that it passes in memory, and room for what newer versions add. */
struct Parameters {
  unsigned char bytes[1024];

  template <typename T>
  void Set(size_t offset, T value) {
    std::memcpy(bytes + offset, &value, sizeof(value));
  }
};
constexpr size_t kContext = 0, kBatch = 4, kUbatch = 8, kType = 36, kOther = 160;  // of a context

template <typename R, typename... A>
R Call(const void* function, A... arguments) {
  return reinterpret_cast<R (*)(A...)>(const_cast<void*>(function))(arguments...);
}

[[noreturn]] void Fail(const char* text) {
  std::fprintf(stderr, "error: %s\n", text);
  std::exit(1);
}

std::vector<int> Numbers(const char* text) {
  std::vector<int> numbers;
  std::stringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) numbers.push_back(std::stoi(item));
  return numbers;
}

llama_model* Load(const char* file) {
  const auto defaults = Call<Parameters>(reinterpret_cast<void*>(llama_model_default_params));
  auto* model =
      Call<llama_model*>(reinterpret_cast<void*>(llama_model_load_from_file), file, defaults);
  if (!model) Fail("a model cannot be loaded");
  return model;
}

llama_context* Open(llama_model* model, llama_context* other) {
  auto parameters = Call<Parameters>(reinterpret_cast<void*>(llama_context_default_params));
  parameters.Set<uint32_t>(kContext, 4096);
  parameters.Set<uint32_t>(kBatch, 512);
  parameters.Set<uint32_t>(kUbatch, 512);
  if (other) {
    parameters.Set<int32_t>(kType, LLAMA_CONTEXT_TYPE_MTP);
    parameters.Set(kOther, other);
  }
  auto* context =
      Call<llama_context*>(reinterpret_cast<void*>(llama_init_from_model), model, parameters);
  if (!context) Fail("no context");
  if (other && llama_get_ctx_other(context) != other)
    Fail("this version of llama.cpp has its parameters elsewhere");
  return context;
}

llama_token Best(const float* logits, int vocabulary) {
  return static_cast<llama_token>(std::max_element(logits, logits + vocabulary) - logits);
}

struct Models {
  llama_context* target;
  llama_context* drafter;
  llama_batch_ext* guess;
  int vocabulary, width, length;
  std::vector<float> state;

  /*! Runs tokens at once; their most likely successors. */
  std::vector<llama_token> Verify(const std::vector<llama_token>& tokens) {
    const int count = static_cast<int>(tokens.size());
    llama_batch batch = llama_batch_init(count, 0, 1);
    batch.n_tokens = count;
    for (int i = 0; i < count; ++i) {
      batch.token[i] = tokens[i];
      batch.pos[i] = length + i;
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = 0;
      batch.logits[i] = 1;
    }
    if (llama_decode(target, batch)) Fail("decode");
    std::vector<llama_token> found;
    for (int i = 0; i < count; ++i)
      found.push_back(Best(llama_get_logits_ith(target, i), vocabulary));
    llama_batch_free(batch);
    return found;
  }

  std::vector<llama_token> Draft(llama_token last, int guesses) {
    std::vector<llama_token> tokens{last};
    std::vector<float> row = state;
    for (int i = 0; i < guesses; ++i) {
      const llama_pos position = length;
      llama_batch_ext_clear(guess);
      const int32_t at = llama_batch_ext_add_token(guess, 0, tokens.back());
      llama_batch_ext_set_pos(guess, at, &position);
      const llama_embd embedding{row.data(), 1, static_cast<size_t>(width)};
      if (!llama_batch_ext_set_embd_state(guess, at, embedding)) Fail("the state of a guess");
      llama_batch_ext_set_output_logits(guess, at, true);
      if (llama_process(drafter, LLAMA_PROCESS_TYPE_DECODE, guess)) Fail("a guess");
      tokens.push_back(Best(llama_get_logits_ith(drafter, at), vocabulary));
      const float* next = llama_get_embeddings_nextn_ith(drafter, at);
      row.assign(next, next + width);
    }
    return tokens;
  }

  void TakeBack() { llama_memory_seq_rm(llama_get_memory(target), 0, length, -1); }
};

double Milliseconds(int repeats, const std::function<void()>& action) {
  std::vector<double> times;
  for (int i = -3; i < repeats; ++i) {
    const auto begin = Clock::now();
    action();
    const std::chrono::duration<double, std::milli> passed = Clock::now() - begin;
    if (i >= 0) times.push_back(passed.count());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 8) Fail("usage: drafter MODEL DRAFTER CONTEXT REPEATS ROWS GUESSES BACKEND.so...");
  for (int i = 7; i < argc; ++i) {
    if (!ggml_backend_load(argv[i])) Fail("a backend cannot be loaded");
  }
  const int context = std::atoi(argv[3]), repeats = std::atoi(argv[4]);
  llama_model* model = Load(argv[1]);
  llama_model* small = Load(argv[2]);
  llama_context* target = Open(model, nullptr);
  llama_context* drafter = Open(small, target);
  llama_set_embeddings_nextn(target, true, false);
  llama_set_embeddings_nextn(drafter, true, true);
  Models models{target, drafter, llama_batch_ext_init(drafter), 0, 0, 0, {}};
  models.vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
  models.width = llama_model_n_embd_out(small);
  for (int at = 0; at < context; at += 256) {
    std::vector<llama_token> tokens;
    for (int i = at; i < std::min(context, at + 256); ++i)
      tokens.push_back(2 + i * 7919 % (models.vocabulary - 2));
    models.Verify(tokens);
    models.length += static_cast<int>(tokens.size());
    const float* row =
        llama_get_embeddings_nextn_ith(target, static_cast<int32_t>(tokens.size()) - 1);
    models.state.assign(row, row + models.width);
  }
  char name[256];
  llama_model_desc(model, name, sizeof(name));
  std::printf(
      "{\"benchmark\": \"llama_cpp\", \"measure\": \"drafter\", \"peer_model\": \"%s\", "
      "\"context\": %d, \"repeats\": %d, \"step_ms\": {",
      name, context, repeats);
  const char* comma = "";
  for (const int rows : Numbers(argv[5])) {
    const double ms = Milliseconds(repeats, [&] {
      models.Verify(std::vector<llama_token>(rows, 7));
      models.TakeBack();
    });
    std::printf("%s\"%d\": %.4f", comma, rows, ms);
    comma = ", ";
  }
  std::printf("}, \"round_ms\": {");
  comma = "";
  for (const int guesses : Numbers(argv[6])) {
    const double ms = Milliseconds(repeats, [&] {
      models.Verify(models.Draft(7, guesses));
      models.TakeBack();
    });
    std::printf("%s\"%d\": %.4f", comma, guesses, ms);
    comma = ", ";
  }
  std::printf("}}\n");
  std::fflush(stdout);
  std::_Exit(0);  // the backends, which were loaded first, would be gone before what runs on them
}
