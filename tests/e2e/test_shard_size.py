"""Packages for hosts that take small files: replies are the same as of whole tensors."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.package.artifacts import TensorCache, read_artifact
from gemma4_compile.runtime import Chat, Sampler, SamplingOptions
from tests.packages import CONTEXT_LENGTH, compile_small

LIMIT = 200 << 10  # the embedding of `tiny` has more than a MiB


def reply(package: Path) -> str:
    pieces = Chat.open(package).stream(
        "Hello", Sampler(SamplingOptions(temperature=0.0)), max_tokens=8
    )
    return "".join(pieces)


@pytest.mark.slow
def test_large_tensors_are_split_and_the_replies_are_the_same(
    tiny_package: Path, tmp_path: Path
) -> None:
    small = tmp_path / "small"
    compile_small(
        CompileRequest(
            "tiny", "cpu", "f32", small, context_length=CONTEXT_LENGTH, shard_bytes=LIMIT
        )
    )
    found = [path.stat().st_size for path in small.glob("params_shard_*.bin")]
    assert max(found) <= LIMIT
    whole = TensorCache.from_json(read_artifact(tiny_package / "tensor-cache.json"))
    assert max(record.nbytes for shard in whole.shards for record in shard.records) > LIMIT
    assert reply(small) == reply(tiny_package)
