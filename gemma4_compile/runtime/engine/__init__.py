"""The engine: prompts in chunks, media as rows, decode, one reply after another."""
