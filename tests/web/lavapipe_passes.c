// Preloaded where lavapipe computes: Mesa's kernels with barriers become coroutines, which takes LLVM a time that grows
// with the square of their blocks. Joining blocks first, which LLVM's own pass does, takes a third off a kernel's time.
// LLVM also finds all blocks' dominators anew for every variable in memory: hundreds of them take the time of one if
// they are its fields, which is half of the rest. To choose and schedule instructions with less effort takes half off
// what then remains, and changes no result: what computes, LLVM's passes before it have optimised. LAVAPIPE_EFFORT is
// that effort, of LLVM's 0 to 3; without it, Mesa's own.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

// LLVM's functions for C that are called here.
#define FUNCTIONS(F)                                                               \
  F(void, LLVMConsumeError, (void* error))                                         \
  F(void*, LLVMGetNamedFunction, (void* module, const char* name))                 \
  F(void*, LLVMGetFirstFunction, (void* module))                                   \
  F(void*, LLVMGetNextFunction, (void* function))                                  \
  F(void*, LLVMGetFirstBasicBlock, (void* function))                               \
  F(void*, LLVMGetNextBasicBlock, (void* block))                                   \
  F(void*, LLVMGetFirstInstruction, (void* block))                                 \
  F(void*, LLVMGetNextInstruction, (void* instruction))                            \
  F(int, LLVMGetInstructionOpcode, (void* instruction))                            \
  F(void*, LLVMGetInstructionParent, (void* instruction))                          \
  F(void, LLVMInstructionEraseFromParent, (void* instruction))                     \
  F(void*, LLVMGetFirstUse, (void* value))                                         \
  F(void*, LLVMGetNextUse, (void* use))                                            \
  F(void*, LLVMGetUser, (void* use))                                               \
  F(void*, LLVMGetOperand, (void* user, unsigned index))                           \
  F(void, LLVMSetOperand, (void* user, unsigned index, void* value))               \
  F(int, LLVMGetVolatile, (void* access))                                          \
  F(void*, LLVMIsAConstantInt, (void* value))                                      \
  F(unsigned long long, LLVMConstIntGetZExtValue, (void* value))                   \
  F(void*, LLVMGetModuleContext, (void* module))                                   \
  F(void*, LLVMGetAllocatedType, (void* variable))                                 \
  F(void*, LLVMStructTypeInContext, (void* context, void** fields, unsigned, int)) \
  F(void*, LLVMCreateBuilderInContext, (void* context))                            \
  F(void, LLVMDisposeBuilder, (void* builder))                                     \
  F(void, LLVMPositionBuilderBefore, (void* builder, void* instruction))           \
  F(void*, LLVMBuildAlloca, (void* builder, void* type, const char* name))         \
  F(void*, LLVMBuildStructGEP2, (void* builder, void*, void*, unsigned, const char*))
#define DECLARE(result, name, arguments) static result(*name) arguments;
FUNCTIONS(DECLARE)

// Of LLVMOpcode.
enum { ALLOCA = 26, LOAD = 27, STORE = 28 };
enum { MOST = 2048 };

// LLVM is known to the driver alone, which is who calls.
static void* of_llvm(const char* name, void* caller) {
  Dl_info driver;
  if (!dladdr(caller, &driver)) return 0;
  void* library = dlopen(driver.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  return library ? dlsym(library, name) : 0;
}

// A variable of one value that several blocks load and store, and nothing else uses: one block's never lives in a frame.
static int is_shared(void* variable) {
  void *count = LLVMGetOperand(variable, 0), *block = 0;
  if (!LLVMIsAConstantInt(count) || LLVMConstIntGetZExtValue(count) != 1) return 0;
  int blocks = 0;
  for (void* use = LLVMGetFirstUse(variable); use; use = LLVMGetNextUse(use)) {
    void* user = LLVMGetUser(use);
    int opcode = LLVMGetInstructionOpcode(user);
    if (opcode == STORE ? LLVMGetOperand(user, 0) == variable : opcode != LOAD) return 0;
    if (LLVMGetVolatile(user)) return 0;
    blocks += block != LLVMGetInstructionParent(user);
    block = LLVMGetInstructionParent(user);
  }
  return blocks > 1;
}

static void join_variables(void* context, void* function) {
  void *variables[MOST], *types[MOST], *first = LLVMGetFirstBasicBlock(function);
  unsigned count = 0;
  for (void* block = first; block; block = LLVMGetNextBasicBlock(block))
    for (void* each = LLVMGetFirstInstruction(block); each; each = LLVMGetNextInstruction(each))
      if (count < MOST && LLVMGetInstructionOpcode(each) == ALLOCA && is_shared(each)) {
        variables[count] = each;
        types[count++] = LLVMGetAllocatedType(each);
      }
  if (!count) return;
  void* type = LLVMStructTypeInContext(context, types, count, 0);
  void* builder = LLVMCreateBuilderInContext(context);
  LLVMPositionBuilderBefore(builder, LLVMGetFirstInstruction(first));
  void* joined = LLVMBuildAlloca(builder, type, "");
  for (unsigned at = 0; at < count; at++) {
    for (void* use; (use = LLVMGetFirstUse(variables[at]));) {
      void* user = LLVMGetUser(use);
      // Its address anew for each: one for all would be a value that coroutines keep.
      LLVMPositionBuilderBefore(builder, user);
      void* field = LLVMBuildStructGEP2(builder, type, joined, at, "");
      LLVMSetOperand(user, LLVMGetInstructionOpcode(user) == STORE, field);
    }
    LLVMInstructionEraseFromParent(variables[at]);
  }
  LLVMDisposeBuilder(builder);
}

typedef void* (*RunPasses)(void* module, const char* passes, void* machine, void* options);
typedef void (*SetLevel)(void* machine, int level);

void* LLVMRunPasses(void* module, const char* passes, void* machine, void* options) {
  static RunPasses run;
  static SetLevel set_level;
  static int has_all = 1;
  if (!run) {
    void* caller = __builtin_return_address(0);
#define FIND(result, name, arguments) has_all &= !!(*(void**)& name = of_llvm(#name, caller));
    FUNCTIONS(FIND)
    // llvm::TargetMachine::setOptLevel of LLVM before 18, of which C's functions have none.
    set_level =
        (SetLevel)of_llvm("_ZN4llvm13TargetMachine11setOptLevelENS_10CodeGenOpt5LevelE", caller);
    run = (RunPasses)of_llvm("LLVMRunPasses", caller);
  }
  const char* effort = getenv("LAVAPIPE_EFFORT");
  if (effort && machine && set_level) set_level(machine, atoi(effort));
  // The first of Mesa's two rounds, which splits coroutines.
  if (has_all && !strcmp(passes, "default<O0>") &&
      LLVMGetNamedFunction(module, "llvm.coro.begin")) {
    void* error = run(module, "simplifycfg", machine, options);
    if (error) LLVMConsumeError(error);
    void* context = LLVMGetModuleContext(module);
    for (void* each = LLVMGetFirstFunction(module); each; each = LLVMGetNextFunction(each))
      join_variables(context, each);
  }
  return run(module, passes, machine, options);
}
