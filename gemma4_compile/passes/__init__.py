"""Relax passes and their order: from the model's module to kernels that the target can run."""
