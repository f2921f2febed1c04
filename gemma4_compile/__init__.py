"""Compile Hugging Face Gemma 4 checkpoints for the browser (WebGPU) and for native runtimes."""

__version__ = "0.1.0"
