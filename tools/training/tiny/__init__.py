"""Making of `tiny`: its closed world, its tokenizer, its training, its marks."""
