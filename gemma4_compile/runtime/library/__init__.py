"""A compiled library: loaded, its calls for a token and for a round, its KV state."""
