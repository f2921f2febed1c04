"""Vectors as matmuls get them: as they are, normed, routed, combined; rounded to int8 or packed."""
