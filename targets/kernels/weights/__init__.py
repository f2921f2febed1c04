"""Weights and the sums of their products, as lanes of a block share them."""
