"""Speed, faults and kernels of a package on this machine."""
