// Preloaded where lavapipe computes: Mesa's kernels with barriers become coroutines, which takes LLVM a time that grows
// with the square of their blocks. Joining blocks first, which LLVM's own pass does, takes a third off a kernel's time;
// to choose and schedule instructions with less effort takes half off the rest, and changes no result: what computes,
// LLVM's passes before it have optimised. LAVAPIPE_EFFORT is that effort, of LLVM's 0 to 3; without it, Mesa's own.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

typedef void* (*RunPasses)(void* module, const char* passes, void* machine, void* options);
typedef void (*ConsumeError)(void* error);
typedef void (*SetLevel)(void* machine, int level);

// LLVM is known to the driver alone, which is who calls.
static void* of_llvm(const char* name, void* caller) {
  Dl_info driver;
  if (!dladdr(caller, &driver)) return 0;
  void* library = dlopen(driver.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  return library ? dlsym(library, name) : 0;
}

void* LLVMRunPasses(void* module, const char* passes, void* machine, void* options) {
  static RunPasses run;
  static ConsumeError consume;
  static SetLevel set_level;
  if (!run) {
    consume = (ConsumeError)of_llvm("LLVMConsumeError", __builtin_return_address(0));
    run = (RunPasses)of_llvm("LLVMRunPasses", __builtin_return_address(0));
    // llvm::TargetMachine::setOptLevel of LLVM before 18, of which C's functions have none.
    set_level = (SetLevel)of_llvm("_ZN4llvm13TargetMachine11setOptLevelENS_10CodeGenOpt5LevelE",
                                  __builtin_return_address(0));
  }
  const char* effort = getenv("LAVAPIPE_EFFORT");
  if (effort && machine && set_level) set_level(machine, atoi(effort));
  // The first of Mesa's two rounds, which splits coroutines.
  if (!strcmp(passes, "default<O0>")) {
    void* error = run(module, "simplifycfg", machine, options);
    if (error) consume(error);
  }
  return run(module, passes, machine, options);
}
