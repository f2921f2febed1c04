"""Drafters next to transformers: the NumPy form, and compiled ones on their targets' own states."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from gemma4_compile.model_spec.config.attention import AttentionKind
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.drafter.reference import draft
from gemma4_compile.model_spec.text.reference import forward
from gemma4_compile.model_spec.text.scales import embedding_scale
from gemma4_compile.runtime import Engine, Package
from gemma4_compile.runtime.library.round_steps import PlainRounds
from gemma4_compile.types import Array
from tests import drafters, hf, hf_drafter, models
from tests.drafted import Drafted, drafted_package
from tests.hf import Float32Array
from tests.marks import slow_unless
from tests.tolerances import LOGITS_F32

KINDS = ("e2b", "moe", "unified")
TIED = (False, False)
# Which of target and drafter have a head of their own; of e2b's clusters choose its rows.
# The last has the keys of its full layers in five parts of 52 positions (256 bytes each).
CASES = (
    *((kind, TIED, None) for kind in KINDS),
    ("e2b", (True, True), None),
    ("unified", (False, True), None),
    ("e2b", TIED, 60 * 256),
)
DRAFTS = 3


class Truth:
    """transformers' target and drafter."""

    def __init__(self, target: models.Checkpoint, drafter: drafters.Drafter) -> None:
        file = models.config_file(target.text_config, "hub", "float32")
        self.config = Gemma4Config.from_dict(file)
        self.weights = target.weights
        self.model = hf.load(target.text_config, target.weights, "float32")
        self.assistant = hf_drafter.load(drafter)

    def owner(self, kind: AttentionKind) -> int:
        """The layer whose keys a drafter's layers of this kind read."""
        last = self.config.num_hidden_layers - self.config.num_kv_shared_layers
        return max(i for i in range(last) if self.config.layer_types[i] is kind)

    def embedding(self, token_id: int) -> Float32Array:
        scale = np.float32(embedding_scale(self.config))
        return np.asarray(self.weights["embed_tokens.weight"][token_id] * scale)

    def drafts(
        self, ids: list[int], token_id: int, count: int
    ) -> list[tuple[Float32Array, Float32Array]]:
        """Logits and states of drafts of what follows ids and a token."""
        states, stored = hf_drafter.target_states(self.model, ids)
        read = {kind: stored[self.owner(kind)] for kind in AttentionKind}
        hidden, found = states[-1], []
        for _ in range(count):
            logits, hidden = self.assistant.draft(self.embedding(token_id), hidden, read)
            found.append((logits, hidden))
            token_id = int(logits.argmax())
        return found


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", models.KINDS)
def test_the_numpy_form_is_that_of_transformers(
    kind: str, tied: bool, tmp_path_factory: Any
) -> None:
    folder = tmp_path_factory.mktemp("drafter")
    drafter = drafters.write_drafter(folder, kind, values=drafters.drafter_config(kind, tied=tied))
    text = {**models.KINDS[kind], "tie_word_embeddings": tied}
    weights = models.random_weights(text)
    truth = Truth(models.Checkpoint(folder, text, weights, "float32"), drafter)
    ids = models.prompt(40).tolist()
    own = forward(truth.config, weights, np.array(ids))
    read = {kind: own.keys_values[truth.owner(kind)] for kind in AttentionKind}
    token_id, hidden = 77, own.normed[-1]
    for logits, state in truth.drafts(ids, token_id, DRAFTS):
        found = draft(
            drafter.config, drafter.plain_weights, truth.embedding(token_id), hidden, read
        )
        np.testing.assert_allclose(found.logits, logits[found.candidates], atol=LOGITS_F32)
        np.testing.assert_allclose(found.hidden, state, atol=LOGITS_F32)
        assert found.token == logits.argmax()
        token_id, hidden = found.token, found.hidden


DraftedOf = Callable[..., Drafted]


@pytest.fixture(scope="module")
def drafted(tmp_path_factory: pytest.TempPathFactory) -> DraftedOf:
    return cache(
        lambda kind, heads, key_bytes=None: drafted_package(
            tmp_path_factory, kind, heads=heads, key_bytes=key_bytes
        )
    )


class Recorded:
    """An engine whose drafter's results are kept."""

    def __init__(self, package: Package) -> None:
        self.engine = Engine(package, drafts=DRAFTS)
        assert self.engine.rounds is not None
        self.rounds = self.engine.rounds
        self.results: list[Any] = []
        calls = self.rounds.drafter.calls
        assert isinstance(calls, PlainRounds)
        plain = calls.draft

        def draft(*args: Any) -> Any:
            result = plain(*args)
            self.results.append([self.engine.device.read(one) for one in result])
            return result

        calls.draft = draft

    def advance(self, token_id: int, accepted: int = 0) -> list[Any]:
        """Add a token and keep some drafts; what the drafter gave."""
        self.results.clear()
        self.rounds.advance(token_id, DRAFTS)
        self.rounds.accept(min(accepted, len(self.results)))
        return list(self.results)


@pytest.mark.parametrize(
    ("kind", "heads", "key_bytes"),
    slow_unless(lambda *case: case == ("e2b", TIED, None), CASES),
)
def test_compiled_drafts_are_those_of_transformers(
    kind: str, heads: tuple[bool, bool], key_bytes: int | None, drafted: DraftedOf
) -> None:
    made = drafted(kind, heads, key_bytes)
    truth = Truth(made.target, made.drafter)
    recorded = Recorded(Package.open(made.package))
    text = models.prompt(200, seed=3).tolist()
    held: list[int] = []

    def check(token_id: int) -> None:
        found = recorded.advance(token_id)
        expected = truth.drafts(held, token_id, len(found))
        for (token, state, logits, *candidates), (want, hidden) in zip(
            found, expected, strict=True
        ):
            ids = candidates[0] if candidates else np.arange(want.size)
            np.testing.assert_allclose(logits[0], want[ids], atol=LOGITS_F32)
            np.testing.assert_allclose(state[0], hidden, atol=LOGITS_F32)
            assert token[0] == want.argmax()
        held.append(token_id)

    # Three turns: the first is shorter than a window; rings wrap in the second; the third begins
    # where tokens were taken back.
    checked = 0
    for begin, prompt, replies, back in ((0, 5, 4, 0), (20, 60, 10, 6), (120, 30, 6, 0)):
        recorded.engine.prefill(text[begin : begin + prompt])
        held += text[begin : begin + prompt]
        assert not recorded.advance(text[begin + prompt]), "no state is known after a prefill"
        held.append(text[begin + prompt])
        for index in range(replies):
            check(text[begin + prompt + 1 + index])
            checked += DRAFTS
        if back:
            assert recorded.engine.pop(back)
            del held[-back:]
    assert checked == DRAFTS * 20
    assert recorded.engine.length == len(held)


@pytest.mark.parametrize("kind", slow_unless("e2b".__eq__, KINDS))
def test_drafts_after_accepted_drafts_begin_with_the_last_of_them(
    kind: str, drafted: DraftedOf
) -> None:
    made = drafted(kind, TIED)
    truth = Truth(made.target, made.drafter)
    recorded = Recorded(Package.open(made.package))
    held = models.prompt(30, seed=5).tolist()
    recorded.engine.prefill(held)
    recorded.advance(60)
    held.append(60)
    for token_id, accepted in ((70, 1), (80, 3), (90, 2), (100, 0)):
        found = recorded.advance(token_id, accepted)
        expected = truth.drafts(held, token_id, DRAFTS)
        for result, (want, _) in zip(found, expected, strict=True):
            assert result[0][0] == want.argmax()
        held += [token_id, *(int(result[0][0]) for result in found[:accepted])]
        assert recorded.engine.length == len(held)


@pytest.mark.parametrize(
    ("kind", "heads"),
    slow_unless(
        lambda *case: case == ("e2b", TIED),
        [(kind, heads) for kind, heads, key_bytes in CASES if key_bytes is None],
    ),
)
def test_drafts_of_several_sequences_are_those_of_transformers(
    kind: str, heads: tuple[bool, bool], drafted: DraftedOf
) -> None:
    """One call drafts for both: of one shorter than a window, and of one whose rings wrap."""
    made = drafted(kind, heads)
    truth = Truth(made.target, made.drafter)
    engine = Engine(Package.open(made.package), drafts=DRAFTS, sequences=2)
    joint, results = engine.joint_rounds, list[list[Array]]()
    assert engine.rounds is not None
    assert joint is not None
    assert joint.guesses is not None
    embed, plain = joint.guesses.graphs.calls

    def draft(*args: Any) -> Any:
        result = plain(*args)
        results.append([engine.device.read(one) for one in result])
        return result

    joint.guesses.graphs.calls = embed, draft
    held = [models.prompt(length, seed=length).tolist() for length in (6, 70)]
    rounds = [engine.rounds, engine.rounds.beside(engine.sequences.add())]
    for one, prompt in zip(rounds, held, strict=True):
        engine.prefill(prompt, one.sequence)
    for step in range(5):
        results.clear()
        tokens = [70 + step, 90 + step]
        joint.begin(rounds, tokens, DRAFTS)
        assert len(results) == (DRAFTS if step else 0), "no state is known after a prefill"
        for row, (one, token_id) in enumerate(zip(rounds, tokens, strict=True)):
            one.advance(token_id, DRAFTS)
            one.accept(0)
            expected = truth.drafts(held[row], token_id, len(results))
            for (token, state, logits, *candidates), (want, hidden) in zip(
                results, expected, strict=True
            ):
                ids = candidates[0][row] if candidates else np.arange(want.size)
                np.testing.assert_allclose(logits[row], want[ids], atol=LOGITS_F32)
                np.testing.assert_allclose(state[row], hidden, atol=LOGITS_F32)
                assert token[row] == want.argmax()
            held[row].append(token_id)
