"""The small trained models that ship with the project: a chat, its drafter, and an embedder."""

from gemma4_compile.tiny.checkpoint import (
    materialize,
    materialize_drafter,
    materialize_embedding,
)

__all__ = ["materialize", "materialize_drafter", "materialize_embedding"]
