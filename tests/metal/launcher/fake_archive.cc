/*!
 * Archives of pipelines of the fake's GPU, and the objects that name their files.
 */
#include <fstream>

#include "fake_kernels.h"
#include "fake_objc.h"

namespace fake {
namespace {

constexpr const char* kHeader = "pipelines of the fake Metal";

struct Url final : Object {
  explicit Url(std::string path) : Object("NSURL"), path(std::move(path)) {}
  std::string path;
};

/*! An array of one object. */
struct Array final : Object {
  explicit Array(Object* object) : Object("NSArray"), object(object) { retain(object); }
  ~Array() override { release(object); }
  Object* object;
};

const std::string& name_of(Object* description) {
  return static_cast<Function*>(static_cast<Description*>(description)->function)->name;
}

Object* new_archive(Object*, const char*, Object* description, Object** error) {
  Object* url = static_cast<ArchiveDescription*>(description)->url;
  auto* archive = new Archive;
  if (url == nullptr) return archive;
  std::ifstream file(static_cast<Url*>(url)->path);
  std::string line;
  if (std::getline(file, line) && line == kHeader) {
    while (std::getline(file, line)) archive->names.insert(line);
    return archive;
  }
  release(archive);
  *error = fake::error("the file is no archive of this GPU");
  return nullptr;
}

bool serialize(Object* self, const char*, Object* url, Object** error) {
  std::ofstream file(static_cast<Url*>(url)->path);
  file << kHeader << '\n';
  for (const std::string& name : static_cast<Archive*>(self)->names) file << name << '\n';
  file.close();
  if (file) return true;
  *error = fake::error("the file cannot be written");
  return false;
}

const bool defined = [] {
  class_of("MTLBinaryArchiveDescriptor").make = +[]() -> Object* { return new ArchiveDescription; };
  class_of("NSURL").make = +[]() -> Object* { fault("a URL of nothing"); };
  class_of("NSArray").make = +[]() -> Object* { fault("an array of nothing"); };
  add_method(
      "Class", "fileURLWithPath:", +[](Object*, const char*, Object* path) {
        return autoreleased(new Url(text_of(path)));
      });
  add_method(
      "Class", "arrayWithObject:", +[](Object*, const char*, Object* object) {
        return autoreleased(new Array(object));
      });
  add_method(
      "MTLBinaryArchiveDescriptor", "setUrl:", +[](Object* self, const char*, Object* url) {
        retain(url);
        release(static_cast<ArchiveDescription*>(self)->url);
        static_cast<ArchiveDescription*>(self)->url = url;
      });
  add_method(
      "MTLComputePipelineDescriptor",
      "setBinaryArchives:", +[](Object* self, const char*, Object* archives) {
        auto* description = static_cast<Description*>(self);
        release(description->archive);
        description->archive = static_cast<Array*>(archives)->object;
        retain(description->archive);
      });
  add_method("MTLDevice", "newBinaryArchiveWithDescriptor:error:", new_archive);
  add_method(
      "MTLBinaryArchive", "addComputePipelineFunctionsWithDescriptor:error:",
      +[](Object* self, const char*, Object* description, Object**) {
        static_cast<Archive*>(self)->names.insert(name_of(description));
        return true;
      });
  add_method("MTLBinaryArchive", "serializeToURL:error:", serialize);
  return true;
}();

}  // namespace
}  // namespace fake
