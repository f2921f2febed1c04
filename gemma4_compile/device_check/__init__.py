"""Known answers: the outputs that kernels must give for known inputs on a user's device."""
