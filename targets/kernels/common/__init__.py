"""Building blocks of kernels: thread blocks, loads of weights, tiles, epilogues."""
