"""Holds a package against Hugging Face transformers in float32 and writes down what was found."""
