// What several sequences at a time take in llama.cpp, and prompts. One JSON object on stdout.
//
// usage: slots MODEL.gguf CONTEXT TOKENS REPEATS SEQUENCES[,SEQUENCES...] PROMPT[,PROMPT...] BACKEND.so...
//
// By sequences, each after CONTEXT tokens of its own: `step_ms` of a batch with one token of each and all logits on the
// host, and `sampled_ms` with each one's next token drawn from them, as llama-server does it: one sequence after the
// other, each with a chain of its own (top-k 64, top-p 0.95, temperature 1, which are Gemma 4's defaults). By prompts:
// `prompt_ms` of so many tokens of one sequence until the logits of the last one are on the host.
//
// Declares what it uses of llama.h and ggml-backend.h; of the context's parameters it sets the first four, which have kept
// their places. Made for the library of the wheel cyllama-cuda12 0.2.18 (ggml 0.12.0).
//   g++ -O2 -std=c++17 slots.cc LIBRARIES -o slots
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

namespace {

/*! A structure of the library's that it passes in memory, and room for what newer versions add. */
struct Parameters {
  unsigned char bytes[1024];

  void Set(size_t offset, uint32_t value) { std::memcpy(bytes + offset, &value, sizeof(value)); }
};
constexpr size_t kContext = 0, kBatch = 4, kUbatch = 8, kSequences = 12;  // of a context

struct Batch {
  int32_t n_tokens;
  int32_t* token;
  float* embd;
  int32_t* pos;
  int32_t* n_seq_id;
  int32_t** seq_id;
  int8_t* logits;
};

}  // namespace

extern "C" {
void* ggml_backend_load(const char* path);
Parameters llama_model_default_params();
Parameters llama_context_default_params();
void* llama_model_load_from_file(const char* path, Parameters parameters);
void* llama_init_from_model(void* model, Parameters parameters);
void llama_free(void* context);
uint64_t llama_model_size(const void* model);
int32_t llama_model_desc(const void* model, char* text, size_t size);
const void* llama_model_get_vocab(const void* model);
int32_t llama_vocab_n_tokens(const void* vocab);
Batch llama_batch_init(int32_t tokens, int32_t embd, int32_t sequences);
void llama_batch_free(Batch batch);
int32_t llama_decode(void* context, Batch batch);
void llama_synchronize(void* context);
float* llama_get_logits_ith(void* context, int32_t index);
void* llama_get_memory(const void* context);
void llama_memory_clear(void* memory, bool data);
bool llama_memory_seq_rm(void* memory, int32_t sequence, int32_t begin, int32_t end);
void* llama_sampler_chain_init(bool no_performance);
void llama_sampler_chain_add(void* chain, void* sampler);
void* llama_sampler_init_top_k(int32_t k);
void* llama_sampler_init_top_p(float p, size_t min_keep);
void* llama_sampler_init_temp(float temperature);
void* llama_sampler_init_dist(uint32_t seed);
int32_t llama_sampler_sample(void* sampler, void* context, int32_t index);
}

namespace {

using Clock = std::chrono::steady_clock;

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

struct Median {
  std::vector<double> values;

  void Time(int tokens, const std::function<void()>& action) {
    const auto begin = Clock::now();
    action();
    const std::chrono::duration<double, std::milli> passed = Clock::now() - begin;
    values.push_back(passed.count() / tokens);
  }

  double Value() {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  }
};

struct Model {
  void* model;
  int vocabulary;

  void* Open(int sequences, int length) const {
    Parameters parameters = llama_context_default_params();
    parameters.Set(kContext, sequences * length);  // divided among the sequences
    parameters.Set(kBatch, 2048);
    parameters.Set(kUbatch, 512);
    parameters.Set(kSequences, sequences);
    void* context = llama_init_from_model(model, parameters);
    if (!context) Fail("no context");
    return context;
  }

  int Token(int index, int seed) const {
    return 2 + static_cast<int>((index * 7919LL + seed * 104729LL) % (vocabulary - 2));
  }

  /*! Runs `count` tokens of one sequence from position `at` on; the logits of the last one. */
  void Prompt(void* context, int sequence, int at, int count) const {
    Batch batch = llama_batch_init(count, 0, 1);
    batch.n_tokens = count;
    for (int i = 0; i < count; ++i) {
      batch.token[i] = Token(at + i, sequence);
      batch.pos[i] = at + i;
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = sequence;
      batch.logits[i] = i == count - 1;
    }
    if (llama_decode(context, batch)) Fail("prompt");
    llama_batch_free(batch);
  }

  void Fill(void* context, int sequence, int count) const {
    for (int at = 0; at < count; at += 2048)
      Prompt(context, sequence, at, std::min(2048, count - at));
    llama_synchronize(context);
  }
};

struct Step {
  void* context;
  Batch batch;
  int sequences;

  Step(void* with, int count)
      : context(with), batch(llama_batch_init(count, 0, 1)), sequences(count) {}

  void Run(const std::vector<int>& tokens, int position) {
    batch.n_tokens = sequences;
    for (int i = 0; i < sequences; ++i) {
      batch.token[i] = tokens[i];
      batch.pos[i] = position;
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = i;
      batch.logits[i] = 1;
    }
    if (llama_decode(context, batch)) Fail("decode");
    for (int i = 0; i < sequences; ++i) {
      if (!llama_get_logits_ith(context, i)) Fail("logits");
    }
  }
};

void* Sampler(int seed) {
  void* chain = llama_sampler_chain_init(true);
  llama_sampler_chain_add(chain, llama_sampler_init_top_k(64));
  llama_sampler_chain_add(chain, llama_sampler_init_top_p(0.95f, 1));
  llama_sampler_chain_add(chain, llama_sampler_init_temp(1.0f));
  llama_sampler_chain_add(chain, llama_sampler_init_dist(seed));
  return chain;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 8) Fail("usage: slots MODEL CONTEXT TOKENS REPEATS SEQUENCES PROMPTS BACKEND.so...");
  for (int i = 7; i < argc; ++i) {
    if (!ggml_backend_load(argv[i])) Fail("a backend cannot be loaded");
  }
  const int context_tokens = std::atoi(argv[2]), tokens = std::atoi(argv[3]),
            repeats = std::atoi(argv[4]);
  Model model{llama_model_load_from_file(argv[1], llama_model_default_params()), 0};
  if (!model.model) Fail("the model cannot be loaded");
  model.vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model.model));
  char name[256];
  llama_model_desc(model.model, name, sizeof(name));
  std::printf(
      "{\"benchmark\": \"llama_cpp\", \"measure\": \"slots\", \"peer_model\": \"%s\", "
      "\"weight_bytes\": %llu, \"context\": %d, \"tokens_per_sample\": %d, \"repeats\": %d, "
      "\"steps\": {",
      name, static_cast<unsigned long long>(llama_model_size(model.model)), context_tokens, tokens,
      repeats);
  const char* comma = "";
  for (const int sequences : Numbers(argv[5])) {
    void* context = model.Open(sequences, context_tokens + 2 * tokens + 256);
    for (int i = 0; i < sequences; ++i) model.Fill(context, i, context_tokens);
    Step step(context, sequences);
    std::vector<void*> samplers;
    std::vector<int> next(sequences, 7);
    for (int i = 0; i < sequences; ++i) samplers.push_back(Sampler(i));
    Median plain, sampled;
    const auto back = [&] {
      for (int i = 0; i < sequences; ++i)
        llama_memory_seq_rm(llama_get_memory(context), i, context_tokens, -1);
    };
    for (int repeat = 0; repeat <= repeats; ++repeat) {
      back();
      plain.Time(tokens, [&] {
        for (int i = 0; i < tokens; ++i) step.Run(next, context_tokens + i);
      });
      back();
      sampled.Time(tokens, [&] {
        for (int i = 0; i < tokens; ++i) {
          step.Run(next, context_tokens + i);
          for (int k = 0; k < sequences; ++k)
            next[k] = llama_sampler_sample(samplers[k], context, k);
        }
      });
      if (repeat == 0) plain.values.clear(), sampled.values.clear();
    }
    std::printf("%s\"%d\": {\"step_ms\": %.4f, \"sampled_ms\": %.4f, \"tokens_per_second\": %.1f}",
                comma, sequences, plain.Value(), sampled.Value(),
                1e3 * sequences / sampled.Value());
    comma = ", ";
    llama_batch_free(step.batch);
    llama_free(context);
  }
  std::printf("}, \"prompts\": {");
  comma = "";
  for (const int prompt : Numbers(argv[6])) {
    void* context = model.Open(1, prompt + 256);
    Median times;
    for (int repeat = 0; repeat <= repeats; ++repeat) {
      llama_memory_clear(llama_get_memory(context), true);
      times.Time(1, [&] { model.Fill(context, 0, prompt); });
      if (repeat == 0) times.values.clear();
    }
    const double ms = times.Value();
    std::printf("%s\"%d\": {\"prompt_ms\": %.3f, \"tokens_per_second\": %.1f}", comma, prompt, ms,
                1e3 * prompt / ms);
    comma = ", ";
    llama_free(context);
  }
  std::printf("}}\n");
  std::fflush(stdout);
  std::_Exit(0);  // the backends, which were loaded first, would be gone before what runs on them
}
