"""GPU kernels, one file each, with the same signature as the operator's plain form."""
