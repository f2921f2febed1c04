/*! A library in a browser has no files. Takes the place of TVM's file of this name in wasm builds.
 */
#include "file_utils.h"

namespace tvm {
namespace runtime {

void LoadBinaryFromFile(const std::string& path, std::string*) {
  TVM_FFI_THROW(RuntimeError) << "there are no files to read here: " << path;
}

void SaveBinaryToFile(const std::string& path, const std::string&) {
  TVM_FFI_THROW(RuntimeError) << "there are no files to write here: " << path;
}

}  // namespace runtime
}  // namespace tvm
