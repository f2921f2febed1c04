"""The next token from logits, and the interfaces that generation needs."""
