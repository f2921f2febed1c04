"""An engine with a drafter, and one that wants none: files, rounds that are misused, progress."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gemma4_compile.errors import ArtifactError, UsageError
from gemma4_compile.runtime import Engine, Package
from tests.drafted import Drafted, drafted_package


@pytest.fixture(scope="module")
def drafted(tmp_path_factory: pytest.TempPathFactory) -> Drafted:
    return drafted_package(tmp_path_factory, "e2b")


def _removed(file: Path) -> None:
    file.unlink()


def _emptied(file: Path) -> None:
    file.write_bytes(b"")


def _flipped(file: Path) -> None:
    file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])


@pytest.mark.parametrize("name", ["params_shard_drafter_0.bin", "drafter-tensor-cache.json"])
@pytest.mark.parametrize("damage", [_removed, _emptied, _flipped])
def test_who_wants_no_drafter_needs_none_of_its_files(
    name: str,
    damage: Callable[[Path], None],
    drafted: Drafted,
    tmp_path: Path,
) -> None:
    folder = tmp_path / "package"
    shutil.copytree(drafted.package, folder)
    damage(folder / name)
    package = Package.open(folder, drafter=False)
    assert package.drafter_cache is None
    engine = Engine(package)
    assert engine.rounds is None
    assert Engine.open(folder, drafts=0).prefill([2, 5]).shape == (engine.vocab_size,)
    with pytest.raises(ArtifactError, match=name) as raised:
        Package.open(folder)
    assert raised.value.hint is not None
    assert "--draft 0" in raised.value.hint


def test_who_wants_no_drafter_loads_none(drafted: Drafted, tmp_path: Path) -> None:
    folder = tmp_path / "package"
    shutil.copytree(drafted.package, folder)
    for file in folder.glob("params_shard_drafter_*"):
        file.write_bytes(b"")
    package = replace(Package.open(drafted.package), directory=folder)
    assert Engine(package, drafts=0).rounds is None
    with pytest.raises(ArtifactError, match="params_shard_drafter_0"):
        Engine(package)


def test_a_round_ends_with_its_guesses_accepted(
    drafted: Drafted,
) -> None:
    engine = Engine.open(drafted.package)
    rounds = engine.rounds
    assert rounds is not None
    engine.prefill([2, 5])
    with pytest.raises(UsageError, match="no round of guesses"):
        rounds.accept(0)
    with pytest.raises(UsageError, match="expected 0 guesses or more, found -1"):
        rounds.advance(7, -1)
    rounds.advance(7, 4)  # for the state
    rounds.accept(0)
    rounds.advance(8, 4)
    for count in (-1, 5):
        with pytest.raises(UsageError, match=f"expected 0 to 4 guesses, found {count}"):
            rounds.accept(count)
    for action in (lambda: engine.decode(3), lambda: rounds.advance(3, 1)):
        with pytest.raises(UsageError, match="call accept first"):
            action()
    rounds.accept(2)
    assert engine.length == 2 + 1 + 3
    with pytest.raises(UsageError, match="no round of guesses"):
        rounds.accept(0)
    rounds.advance(8, 4)
    engine.clear()
    assert engine.prefill([2, 5]).shape == (engine.vocab_size,)


def test_rounds_are_the_same_while_another_sequence_goes_on(drafted: Drafted) -> None:
    """Guesses and logits, byte for byte; the other one has tokens of its own between them."""
    found: list[list[bytes]] = []
    for sequences in (1, 2):
        engine = Engine.open(drafted.package, sequences=sequences)
        rounds, numbers = engine.rounds, []
        assert rounds is not None
        engine.prefill([2, 5, 9])
        other = engine.sequences.add() if sequences == 2 else None
        for token in (7, 8, 11, 12):
            guesses, rows = rounds.advance(token, 3)
            logits = [rows.read(row).tobytes() for row in range(len(guesses) + 1)]
            numbers += [bytes(str(guesses), "ascii"), *logits]
            if other is not None:
                engine.prefill([2, token, 30], other)
            rounds.accept(min(1, len(guesses)))
            if other is not None:
                engine.decode(token, other)
        found.append(numbers)
        if other is not None:
            assert other.length == 4 * 4
    assert found[0] == found[1]
    assert len(found[0]) == 2 + 3 * 5, "the first round has no guesses"


def test_more_guesses_than_a_chunk_has_room_for_are_refused(
    drafted: Drafted,
) -> None:
    package = Package.open(drafted.package)
    small = replace(package, chat_config=replace(package.chat_config, prefill_chunk_size=4))
    with pytest.raises(UsageError, match="at most 3, one fewer than its prefill chunk"):
        Engine(small, drafts=4)


def test_loading_counts_the_model_and_then_its_drafter(drafted: Drafted) -> None:
    package, seen = Package.open(drafted.package), list[tuple[int, int]]()
    Engine(package, progress=lambda done, total: seen.append((done, total)))
    assert package.drafter_cache is not None
    sizes = [
        sum(record.nbytes for shard in cache.shards for record in shard.records)
        for cache in (package.tensor_cache, package.drafter_cache)
    ]
    assert seen[-1] == (sum(sizes), sum(sizes))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
