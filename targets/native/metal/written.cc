/*!
 * Reads a kernel's text as TVM's generator for Metal writes it; see written.h.
 */
#include "written.h"

#include <cstdio>
#include <cstring>

namespace gemma4_metal {

namespace {

bool IsWord(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

const char* SkipSpace(const char* at) {
  while (*at == ' ' || *at == '\n') ++at;
  return at;
}

/*! Behind the bracket that closes the one at `at`; the end of the text if none does. */
const char* SkipBrackets(const char* at) {
  int depth = 0;
  for (; *at != '\0'; ++at) {
    if (*at == '(' || *at == '[') ++depth;
    if ((*at == ')' || *at == ']') && --depth == 0) return at + 1;
  }
  return at;
}

/*! Whether what stands behind an element assigns to it or takes its place on. */
bool IsChanged(const char* at) {
  at = SkipSpace(at);
  while (*at == '.') {  // a lane of a vector
    ++at;
    while (IsWord(*at)) ++at;
    at = SkipSpace(at);
  }
  if (*at == '=') return at[1] != '=';
  if ((at[0] == '+' && at[1] == '+') || (at[0] == '-' && at[1] == '-')) return true;
  if (*at != '\0' && strchr("+-*/%&|^", *at) != nullptr) return at[1] == '=';
  if ((at[0] == '<' && at[1] == '<') || (at[0] == '>' && at[1] == '>')) return at[2] == '=';
  return *at == '[';  // an element of what was read, such as a pointer in it
}

/*! Whether an `&`, `++` or `--` before an element takes its place or changes it. */
bool IsTaken(const char* begin, const char* at) {
  const auto before = [begin, &at]() {
    while (at > begin && (at[-1] == ' ' || at[-1] == '\n')) --at;
    return at > begin ? *--at : '\0';
  };
  char last = before();
  while (last == '(') last = before();  // of an address the generator writes (&(name[...]))
  if (last == '&') {
    const char other = before();  // behind a bracket it may be a cast's
    return !(IsWord(other) || other == ']' || other == '&');
  }
  return (last == '+' || last == '-') && at > begin && at[-1] == last;
}

/*!
 * Whether a place that names a pointer only reads an element, in one of two forms:
 *   name[...]
 *   *(device type*)(name + ...)
 */
bool OnlyReads(const char* begin, const char* at, const char* behind) {
  if (*behind == '[') return !IsTaken(begin, at) && !IsChanged(SkipBrackets(behind));
  if (at - begin < 3 || at[-1] != '(' || at[-2] != ')') return false;
  const char* cast = at - 2;
  while (cast > begin && *cast != '(') --cast;
  if (cast == begin || cast[-1] != '*' || strncmp(cast, "(device ", 8) != 0) return false;
  const char* star = cast - 1;
  const char* end = SkipBrackets(at - 1);
  if (star > begin && star[-1] == '(' && *end == ')') {  // (*(device type*)(name + ...))
    return !IsTaken(begin, star - 1) && !IsChanged(end + 1);
  }
  return !IsTaken(begin, star) && !IsChanged(end);
}

}  // namespace

uint32_t WrittenBuffers(const char* source, size_t count) {
  const char* kernel = strstr(source, "kernel void ");
  const char* body = kernel == nullptr ? nullptr : strstr(kernel, ") {");
  uint32_t written = 0;
  for (size_t i = 0; i < count; ++i) {
    char place[32];
    snprintf(place, sizeof(place), " [[ buffer(%zu) ]]", i);
    const char* end = body == nullptr ? nullptr : strstr(kernel, place);
    const char* name = end;
    while (name != nullptr && name > kernel && IsWord(name[-1])) --name;
    bool reads = end != nullptr && end < body && name < end;
    const size_t bytes = reads ? static_cast<size_t>(end - name) : 0;
    for (const char* at = body; reads && *at != '\0';) {
      if (!IsWord(*at)) {
        ++at;
        continue;
      }
      const char* behind = at;
      while (IsWord(*behind)) ++behind;
      const bool named = static_cast<size_t>(behind - at) == bytes && strncmp(at, name, bytes) == 0;
      if (named) reads = OnlyReads(body, at, behind);
      at = behind;
    }
    if (!reads) written |= 1u << i;
  }
  return written;
}

bool NeedsTensors(const char* source) { return strstr(source, "<metal_tensor>") != nullptr; }

}  // namespace gemma4_metal
