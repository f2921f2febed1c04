"""Sound input: from samples at 16 kHz to rows of the text decoder."""
