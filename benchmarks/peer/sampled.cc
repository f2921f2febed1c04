// What llama.cpp's user gets: wall time of a sampled token, and of a prompt's first one. One JSON object on stdout.
//
// usage: sampled FILE.gguf DEVICE [TOKENS 256] [PROMPT 1007] [REPEATS 3] [FLASH_ATTENTION auto] [THREADS 4]
//
// Each token is drawn on the host from the logits of the last one, as llama.cpp's own programs do: greedily, and
// with temperature 1, top-k 64 and top-p 0.95, which are Gemma 4's defaults. Made for llama.cpp v0.5.0:
//   g++ -O2 -std=c++17 sampled.cc -I llama.cpp/include -I llama.cpp/ggml/include -L LIBRARIES -lllama ... -o sampled
#include <llama.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

double MillisecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

[[noreturn]] void Fail(const char* text) {
  std::fprintf(stderr, "error: %s\n", text);
  std::exit(1);
}

struct Reply {
  double first_token_ms, ms_per_token;
};

/*! Forwards a prompt of `prompt` tokens on an empty context, and draws `tokens` after it. */
Reply Answer(llama_context* context, llama_sampler* sampler, int prompt, int tokens, int seed,
             int vocabulary) {
  llama_memory_clear(llama_get_memory(context), true);
  std::vector<llama_token> ids(prompt);
  for (int i = 0; i < prompt; ++i) ids[i] = 2 + (i * 7919 + seed * 104729) % (vocabulary - 2);
  const auto begin = Clock::now();
  const int batch = static_cast<int>(llama_n_batch(context));
  for (int at = 0; at < prompt; at += batch) {
    if (llama_decode(context, llama_batch_get_one(ids.data() + at, std::min(batch, prompt - at))))
      Fail("prompt");
  }
  llama_token token = llama_sampler_sample(sampler, context, -1);
  const double first = MillisecondsSince(begin);
  const auto second = Clock::now();
  for (int i = 1; i < tokens; ++i) {
    if (llama_decode(context, llama_batch_get_one(&token, 1))) Fail("decode");
    token = llama_sampler_sample(sampler, context, -1);
  }
  return {first, MillisecondsSince(second) / (tokens - 1)};
}

void PrintMedian(const char* name, std::vector<double> values) {
  std::printf(", \"%s\": {\"median\": ", name);
  std::vector<double> sorted = values;
  std::sort(sorted.begin(), sorted.end());
  std::printf("%.4f, \"values\": [", sorted[sorted.size() / 2]);
  for (size_t i = 0; i < values.size(); ++i) std::printf("%s%.4f", i ? ", " : "", values[i]);
  std::printf("]}");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3)
    Fail("usage: sampled FILE.gguf DEVICE [TOKENS] [PROMPT] [REPEATS] [on|off|auto] [THREADS]");
  const int tokens = argc > 3 ? std::atoi(argv[3]) : 256,
            prompt = argc > 4 ? std::atoi(argv[4]) : 1007;
  const int repeats = argc > 5 ? std::atoi(argv[5]) : 3;
  const std::string flash = argc > 6 ? argv[6] : "auto";
  ggml_backend_load_all();
  ggml_backend_dev_t device = ggml_backend_dev_by_name(argv[2]);
  if (!device) Fail("there is no such device");
  ggml_backend_dev_t devices[] = {device, nullptr};
  llama_model_params model_params = llama_model_default_params();
  model_params.devices = devices;
  model_params.n_gpu_layers = 99;
  llama_model* model = llama_model_load_from_file(argv[1], model_params);
  if (!model) Fail("the model cannot be loaded");
  llama_context_params params = llama_context_default_params();
  params.n_ctx = 4096;
  params.n_batch = params.n_ubatch = 512;
  params.flash_attn_type = flash == "on"    ? LLAMA_FLASH_ATTN_TYPE_ENABLED
                           : flash == "off" ? LLAMA_FLASH_ATTN_TYPE_DISABLED
                                            : LLAMA_FLASH_ATTN_TYPE_AUTO;
  if (argc > 7) params.n_threads = params.n_threads_batch = std::atoi(argv[7]);
  llama_context* context = llama_init_from_model(model, params);
  if (!context) Fail("no context");
  const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));

  llama_sampler* greedy = llama_sampler_chain_init(llama_sampler_chain_default_params());
  llama_sampler_chain_add(greedy, llama_sampler_init_greedy());
  llama_sampler* drawn = llama_sampler_chain_init(llama_sampler_chain_default_params());
  llama_sampler_chain_add(drawn, llama_sampler_init_top_k(64));
  llama_sampler_chain_add(drawn, llama_sampler_init_top_p(0.95f, 1));
  llama_sampler_chain_add(drawn, llama_sampler_init_temp(1.0f));
  llama_sampler_chain_add(drawn, llama_sampler_init_dist(7));

  Answer(context, drawn, prompt, 32, 99, vocabulary);
  std::vector<double> greedy_ms, sampled_ms, short_ms, long_ms;
  for (int i = 0; i < repeats; ++i) {
    const Reply first = Answer(context, greedy, 17, tokens, i, vocabulary);
    greedy_ms.push_back(first.ms_per_token);
    short_ms.push_back(first.first_token_ms);
    sampled_ms.push_back(Answer(context, drawn, 17, tokens, 15 + i, vocabulary).ms_per_token);
    long_ms.push_back(Answer(context, greedy, prompt, 64, 25 + i, vocabulary).first_token_ms);
  }
  char name[256];
  llama_model_desc(model, name, sizeof(name));
  std::printf(
      "{\"benchmark\": \"llama_cpp\", \"measure\": \"sampled\", \"peer_model\": \"%s\", "
      "\"device\": \"%s\", "
      "\"backend\": \"%s\", \"weight_bytes\": %llu, \"tokens\": %d, \"long_prompt_tokens\": %d, "
      "\"flash_attention\": \"%s\"",
      name, ggml_backend_dev_description(device), argv[2],
      static_cast<unsigned long long>(llama_model_size(model)), tokens, prompt, flash.c_str());
  PrintMedian("greedy_ms_per_token", greedy_ms);
  PrintMedian("sampled_ms_per_token", sampled_ms);
  PrintMedian("short_first_token_ms", short_ms);
  PrintMedian("long_first_token_ms", long_ms);
  std::printf("}\n");
  return 0;
}
