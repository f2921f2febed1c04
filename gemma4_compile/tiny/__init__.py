"""The small trained model that ships with the project."""

from gemma4_compile.tiny.checkpoint import materialize

__all__ = ["materialize"]
