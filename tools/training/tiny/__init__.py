"""How `tiny` was made: its closed world, its tokenizer, its training, its marks."""
