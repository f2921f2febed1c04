/*!
 * TVM's runtime for the browser, as one unit. The three files come with TVM's wheel and include the
 * runtime's sources; `linker.py` lays them out and leaves out the sources that a browser never
 * calls.
 */
#include "web/emcc/wasm_runtime.cc"

#include "web/emcc/tvmjs_support.cc"
#include "web/emcc/webgpu_runtime.cc"
