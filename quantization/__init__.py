"""How weights are stored: schemes, recipes, packing and conversion."""
