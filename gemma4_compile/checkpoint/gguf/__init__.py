"""GGUF, the files of llama.cpp, as checkpoints: header, names, config, tokenizer."""
