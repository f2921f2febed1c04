/*!
 * Objective-C's runtime as far as the launcher uses it, for a system that has none: objects with
 * classes, counts and pools. It is as strict as it can be: the first message to an object that is
 * gone, or that its class does not know, ends the process with what was wrong.
 */
#pragma once

#include <map>
#include <string>

namespace fake {

constexpr int kFault = 86;  // exit code

/*! End the process with a message. */
[[noreturn]] void fault(const char* format, ...) __attribute__((format(printf, 1, 2)));

using Method = void (*)();

struct Class;

struct Object {
  explicit Object(const char* of);
  virtual ~Object();
  Class* isa;
  long count = 1;
};

struct Class {
  std::string name;
  std::map<std::string, Method> methods;
  Object* as_object = nullptr;  // what objc_getClass returns
  Object* (*make)() = nullptr;  // of `alloc`, for classes that have it
  long alive = 0;
};

/*! A class by its name; it is made when first named. */
Class& class_of(const std::string& name);

/*! Add a method, a function that takes the object and the selector first. */
template <typename Function>
void add_method(const char* name, const char* selector, Function* method) {
  class_of(name).methods[selector] = reinterpret_cast<Method>(method);
}

void retain(Object* object);
void release(Object* object);
/*! Hand an object to the innermost pool. */
Object* autoreleased(Object* object);
/*! Another reference for a caller who does not own it. */
Object* lent(Object* object);

Object* string(const std::string& text);
const std::string& text_of(Object* string);
Object* error(const std::string& description);

}  // namespace fake
