#include "fake_objc.h"

#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <set>
#include <vector>

namespace fake {
namespace {

std::set<Object*>& alive() {
  static auto* objects = new std::set<Object*>;
  return *objects;
}

std::vector<std::vector<Object*>>& pools() {
  static thread_local std::vector<std::vector<Object*>> stack;
  return stack;
}

struct String final : Object {
  explicit String(std::string text) : Object("NSString"), text(std::move(text)) {}
  std::string text;
};

struct Error final : Object {
  explicit Error(Object* description) : Object("NSError"), description(description) {}
  ~Error() override { release(description); }
  Object* description;
};

struct ClassObject final : Object {
  explicit ClassObject(Class* of) : Object("Class"), of(of) {}
  Class* of;
};

long nothing() { return 0; }

const bool defined = [] {
  add_method(
      "NSObject", "retain", +[](Object* self, const char*) {
        retain(self);
        return self;
      });
  add_method("NSObject", "release", +[](Object* self, const char*) { release(self); });
  add_method("NSObject", "init", +[](Object* self, const char*) { return self; });
  add_method(
      "NSString", "UTF8String", +[](Object* self, const char*) { return text_of(self).c_str(); });
  add_method(
      "Class", "stringWithUTF8String:", +[](Object*, const char*, const char* text) {
        return autoreleased(string(text));
      });
  add_method(
      "Class", "alloc", +[](Object* self, const char*) {
        Class* of = static_cast<ClassObject*>(self)->of;
        if (of->make == nullptr) fault("`%s` has no `alloc`", of->name.c_str());
        return of->make();
      });
  add_method(
      "NSError", "localizedDescription",
      +[](Object* self, const char*) { return lent(static_cast<Error*>(self)->description); });
  return true;
}();

}  // namespace

void fault(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fputs("fake Metal: ", stderr);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  fflush(stderr);
  _exit(kFault);
}

Object::Object(const char* of) : isa(&class_of(of)) {
  alive().insert(this);
  ++isa->alive;
}

Object::~Object() {
  alive().erase(this);
  --isa->alive;
}

Class& class_of(const std::string& name) {
  static auto* classes = new std::map<std::string, Class>;
  Class& found = (*classes)[name];
  if (found.name.empty()) found.name = name;
  return found;
}

void retain(Object* object) {
  if (object == nullptr) return;
  if (alive().count(object) == 0) fault("an object that is gone is retained");
  ++object->count;
}

void release(Object* object) {
  if (object == nullptr) return;
  if (alive().count(object) == 0) fault("an object that is gone is released");
  if (--object->count == 0) delete object;
}

Object* autoreleased(Object* object) {
  if (pools().empty()) fault("`%s` without a pool", object->isa->name.c_str());
  pools().back().push_back(object);
  return object;
}

Object* lent(Object* object) {
  if (object == nullptr) return nullptr;
  retain(object);
  return autoreleased(object);
}

Object* string(const std::string& text) { return new String(text); }
const std::string& text_of(Object* string) { return static_cast<String*>(string)->text; }
Object* error(const std::string& description) {
  return autoreleased(new Error(string(description)));
}

extern "C" {

/*! The method that a message reaches; called by objc_msgSend. */
Method fake_find_method(Object* object, const char* selector) {
  if (object == nullptr) return reinterpret_cast<Method>(&nothing);
  if (alive().count(object) == 0) fault("`%s` is sent to an object that is gone", selector);
  for (Class* one : {object->isa, &class_of("NSObject")}) {
    auto found = one->methods.find(selector);
    if (found != one->methods.end()) return found->second;
  }
  fault("`%s` does not know `%s`", object->isa->name.c_str(), selector);
}

Object* objc_getClass(const char* name) {
  Class& of = class_of(name);
  if (of.methods.empty() && of.make == nullptr) return nullptr;
  if (of.as_object == nullptr) of.as_object = new ClassObject(&of);
  return of.as_object;
}

const char* sel_registerName(const char* name) {
  static auto* names = new std::set<std::string>;
  return names->insert(name).first->c_str();
}

void* objc_autoreleasePoolPush() {
  pools().emplace_back();
  return reinterpret_cast<void*>(pools().size());
}

void objc_autoreleasePoolPop(void* pool) {
  if (pool != reinterpret_cast<void*>(pools().size())) fault("a pool ends within another");
  for (Object* object : pools().back()) release(object);
  pools().pop_back();
}

/*! How many objects of a class there are. */
long fake_alive(const char* name) { return class_of(name).alive; }
}

}  // namespace fake

// A message is a call of its method: arguments stay where they are.
#if defined(__x86_64__)
asm(R"(
.text
.globl objc_msgSend
.type objc_msgSend, @function
objc_msgSend:
  pushq %rbp
  movq %rsp, %rbp
  subq $192, %rsp
  movq %rdi, 0(%rsp)
  movq %rsi, 8(%rsp)
  movq %rdx, 16(%rsp)
  movq %rcx, 24(%rsp)
  movq %r8, 32(%rsp)
  movq %r9, 40(%rsp)
  movq %rax, 48(%rsp)
  movups %xmm0, 64(%rsp)
  movups %xmm1, 80(%rsp)
  movups %xmm2, 96(%rsp)
  movups %xmm3, 112(%rsp)
  call fake_find_method@PLT
  movq %rax, %r11
  movq 0(%rsp), %rdi
  movq 8(%rsp), %rsi
  movq 16(%rsp), %rdx
  movq 24(%rsp), %rcx
  movq 32(%rsp), %r8
  movq 40(%rsp), %r9
  movq 48(%rsp), %rax
  movups 64(%rsp), %xmm0
  movups 80(%rsp), %xmm1
  movups 96(%rsp), %xmm2
  movups 112(%rsp), %xmm3
  leave
  jmp *%r11
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl objc_msgSend
.type objc_msgSend, @function
objc_msgSend:
  stp x29, x30, [sp, #-160]!
  mov x29, sp
  stp x0, x1, [sp, #16]
  stp x2, x3, [sp, #32]
  stp x4, x5, [sp, #48]
  stp x6, x7, [sp, #64]
  str x8, [sp, #80]
  stp q0, q1, [sp, #96]
  stp q2, q3, [sp, #128]
  bl fake_find_method
  mov x16, x0
  ldp x0, x1, [sp, #16]
  ldp x2, x3, [sp, #32]
  ldp x4, x5, [sp, #48]
  ldp x6, x7, [sp, #64]
  ldr x8, [sp, #80]
  ldp q0, q1, [sp, #96]
  ldp q2, q3, [sp, #128]
  ldp x29, x30, [sp], #160
  br x16
)");
#endif
