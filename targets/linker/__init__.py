"""From a built executable to a library: compilers, linkers, objects of the runtime."""
