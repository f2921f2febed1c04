// What llama.cpp's vision tower takes for a picture: pixels in, rows of the decoder out. One JSON object on stdout.
//
// usage: picture LIBRARIES MMPROJ.gguf SIDE [REPEATS 5]
//
// LIBRARIES: a folder with llama.cpp's shared libraries, libmtmd and a GPU's backend among them. The picture has SIDE by
// SIDE pixels, which libmtmd's own debugging function takes as they are. Its ABI is that of llama.cpp v0.7.0, whose
// parameters are handed on as the library fills them in: the first GPU, flash attention where it can, a warm-up.
//   g++ -O2 -std=c++17 picture.cc -ldl -o picture
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Picture = std::vector<std::vector<float>>;  // rows of RGB values
struct Context;

/*! The library's parameters and more: passed in memory, of which it reads its own part. */
struct Parameters {
  unsigned char bytes[1024];
};

[[noreturn]] void Fail(const std::string& text) {
  std::fprintf(stderr, "error: %s\n", text.c_str());
  std::exit(1);
}

/*! Opens the one library of a folder whose file name begins so. */
void* Open(const std::filesystem::path& folder, const std::string& name) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().filename().string().rfind(name, 0) != 0) continue;
    if (void* library = dlopen(entry.path().c_str(), RTLD_NOW | RTLD_GLOBAL)) return library;
    Fail(dlerror());
  }
  Fail("there is no " + name + " in " + folder.string());
}

template <typename T>
T* Function(void* library, const char* name) {
  void* found = dlsym(library, name);
  if (!found) Fail(std::string("there is no ") + name);
  return reinterpret_cast<T*>(found);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) Fail("usage: picture LIBRARIES MMPROJ.gguf SIDE [REPEATS]");
  const std::filesystem::path folder = argv[1];
  const int side = std::atoi(argv[3]), repeats = argc > 4 ? std::atoi(argv[4]) : 5;
  void* base = Open(folder, "libggml-base");
  void* ggml = Open(folder, "libggml-2");  // its name goes on with a hash
  void* mtmd = Open(folder, "libmtmd");
  (void)base;
  const auto load = Function<void*(const char*)>(ggml, "ggml_backend_load");
  std::string backends;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    for (const char* kind : {"cpu", "vulkan", "cuda"}) {
      if (name.rfind(std::string("libggml-") + kind, 0) != 0) continue;
      if (load(entry.path().c_str())) backends += std::string(backends.empty() ? "" : ",") + kind;
    }
  }
  const auto defaults = Function<Parameters()>(mtmd, "mtmd_context_params_default");
  const auto open =
      Function<Context*(const char*, const void*, Parameters)>(mtmd, "mtmd_init_from_file");
  const auto encode = Function<void(Context*, const Picture&)>(
      mtmd, "_Z23mtmd_debug_encode_imageP12mtmd_contextRKSt6vectorIS1_IfSaIfEESaIS3_EE");
  Context* context = open(argv[2], nullptr, defaults());
  if (!context) Fail("the tower cannot be loaded");
  Picture picture(side, std::vector<float>(3 * side));
  unsigned state = 1;
  for (auto& row : picture) {
    for (float& value : row) value = ((state = state * 1664525u + 1013904223u) >> 8) / 16777216.f;
  }
  std::vector<double> times;
  for (int i = -2; i < repeats; ++i) {
    const auto begin = Clock::now();
    encode(context, picture);
    const std::chrono::duration<double, std::milli> passed = Clock::now() - begin;
    if (i >= 0) times.push_back(passed.count());
  }
  std::vector<double> sorted = times;
  std::sort(sorted.begin(), sorted.end());
  std::printf(
      "{\"benchmark\": \"llama_cpp\", \"measure\": \"image\", \"backend\": \"%s\", "
      "\"pixels\": [%d, %d], \"image_ms\": {\"median\": %.4f, \"values\": [",
      backends.c_str(), side, side, sorted[sorted.size() / 2]);
  for (size_t i = 0; i < times.size(); ++i) std::printf("%s%.4f", i ? ", " : "", times[i]);
  std::printf("]}}\n");
  return 0;
}
