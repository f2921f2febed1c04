"""The name by which a library knows its package again, in a checkpoint of its KV state."""

from __future__ import annotations

from gemma4_compile.checkpoint.match import Checkpoint
from gemma4_compile.checkpoint.same_weights import sample_hash
from gemma4_compile.package import artifacts
from gemma4_compile.package.artifacts import Build

VERSIONS = ("gemma4-compile", "apache-tvm")
"""Packages whose kernels write the keys and values; another Python, for one, changes nothing."""


def package_digest(provenance: Build, checkpoint: Checkpoint | None) -> str:
    """Digest of a model's weights, recipe, target and compiler.

    Parameters
    ----------
    provenance : entry of the build in provenance
    checkpoint : the weights; None where only the library is built. Of weights on the hub the
        revision names them, of local files a sample of their bytes
    """
    versions = {name: provenance["versions"][name] for name in VERSIONS}
    is_local = provenance["source"]["kind"] in ("directory", "gguf")
    sample = sample_hash(checkpoint.tensors.values()) if checkpoint and is_local else None
    return artifacts.digest({**provenance, "versions": versions, "sample": sample})
