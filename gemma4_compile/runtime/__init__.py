"""Runs a compiled package in Python: engine, sampling, chat, embeddings. Imports no compiler."""

from gemma4_compile.runtime.chat.chat import Chat, Reply
from gemma4_compile.runtime.embedding.embedder import Embedder
from gemma4_compile.runtime.engine.engine import Engine
from gemma4_compile.runtime.engine.sequence import ContextFullError
from gemma4_compile.runtime.package.package import Package
from gemma4_compile.runtime.sampling.sampling import Sampler, SamplingOptions

__all__ = [
    "Chat",
    "ContextFullError",
    "Embedder",
    "Engine",
    "Package",
    "Reply",
    "Sampler",
    "SamplingOptions",
]
