// What the module was made for and is tested with. A library names the TVM that it holds; one of another version is left
// alone. The client does not report its version: what it does is compared call by call, and tests pin it.
export const MADE_FOR = {
  webLlm: "0.2.86",
  webRuntime: "0.27.0-dev0",
  tvm: "0.27.0",
} as const;
