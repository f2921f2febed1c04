"""The device of a package: TVM's runtime, CUDA's, and graphs of what a call launches."""
