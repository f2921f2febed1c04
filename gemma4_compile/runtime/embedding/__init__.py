"""Embeddings of texts by a package of an encoder."""
