"""Storage of weights: schemes, recipes, packing and conversion."""
