"""An encoder's API as the official clients of OpenAI and Ollama use it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest
from starlette.routing import Router

from gemma4_compile.runtime import Embedder, Package
from gemma4_compile.runtime.server.body import Limits
from gemma4_compile.runtime.server.cards import ModelCard
from gemma4_compile.runtime.server.embeddings.endpoints import OF_REPLIES, embedding_routes
from gemma4_compile.runtime.server.embeddings.service import EmbeddingService
from gemma4_compile.runtime.server.models.offered import OfferedModel
from gemma4_compile.runtime.server.models.pool import ModelPool
from gemma4_compile.runtime.server.models.routes import model_routes
from gemma4_compile.runtime.server.openai_responses.store import ResponseStore
from tests.live_server import LOCAL, TOOL_TEMPLATE, Live, scripted_model, serving, until
from tests.tiny_embedder import embedder_package

TEXTS = ["Ann has two apples.", "What is two and two?"]
NAME = "embedder"


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    return Embedder.open(embedder_package(tmp_path_factory))


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> ModelCard:
    package = Package.open(embedder_package(tmp_path_factory))
    return ModelCard.of_package(package, NAME, None)


@pytest.fixture
def service(embedder: Embedder, card: ModelCard) -> Iterator[EmbeddingService]:
    made = EmbeddingService(card, lambda: embedder, queue=1)
    yield made
    made.close()


@pytest.fixture
def live(service: EmbeddingService) -> Iterator[Live]:
    with serving(embedding_routes(service, Limits(), None)) as live:
        yield live


def post(live: Live, path: str, **body: Any) -> tuple[int, Any]:
    status, _, answer = live.request("POST", path, body)
    return status, json.loads(answer)


@pytest.mark.parametrize("form", ["float", "base64", None])
def test_openais_client_gets_what_python_gets(live: Live, embedder: Embedder, form: Any) -> None:
    wanted = {} if form is None else {"encoding_format": form}
    answer = live.client().embeddings.create(model=NAME, input=TEXTS, **wanted)
    vectors: Any = [one.embedding for one in answer.data]
    if form == "base64":  # the client decodes only what it has asked for itself
        import base64

        vectors = [np.frombuffer(base64.b64decode(one), "<f4") for one in vectors]
    np.testing.assert_array_equal(np.array(vectors, np.float32), embedder.embed(TEXTS))
    assert [one.index for one in answer.data] == [0, 1]
    tokens = sum(map(len, embedder.tokens_of(TEXTS)))
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (tokens, tokens)
    assert answer.model == NAME


def test_every_form_of_an_input_is_taken(live: Live, embedder: Embedder) -> None:
    first = embedder.tokens_of(TEXTS[:1])[0]
    inner = first[1:-1]  # as a tokenizer makes them without special tokens
    for given in (TEXTS[0], TEXTS[:1], first, [first], inner, [inner], first[:-1], first[1:]):
        answer = live.client().embeddings.create(model=NAME, input=given, dimensions=32)
        np.testing.assert_array_equal(
            np.array([one.embedding for one in answer.data], np.float32),
            embedder.embed(TEXTS[0], dimensions=32),
        )
    status, answer = post(live, "/v1/embeddings", input=TEXTS[0], task="query")
    assert status == 200
    found = np.array(answer["data"][0]["embedding"], np.float32)
    np.testing.assert_array_equal(found, embedder.embed(TEXTS[0], task="query")[0])
    status, answer = post(live, "/v1/embeddings", input=inner, add_special_tokens=False)
    found = np.array(answer["data"][0]["embedding"], np.float32)
    np.testing.assert_array_equal(found, embedder.embed_tokens([inner])[0])
    assert answer["usage"]["prompt_tokens"] == len(inner)


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({}, "input", "missing"),
        ({"input": ""}, "input", "something in it"),
        ({"input": []}, "input", "something in it"),
        ({"input": ["a", ""]}, "input", "something in it"),
        ({"input": [[1], []]}, "input", "something in it"),
        ({"input": 3}, "input", "expected a string"),
        ({"input": [1.5]}, "input[0]", "expected a string"),
        ({"input": ["a", True]}, "input[1]", "expected a string"),
        ({"input": ["a"] * 2049}, "input", "up to 2048"),
        ({"input": [5000]}, "input", "token ids from 0 to 1023"),
        ({"input": "a", "dimensions": 0}, "dimensions", "expected 1 to"),
        ({"input": "a", "dimensions": 129}, "dimensions", "expected 1 to 128"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "float or base64"),
        ({"input": "a", "task": "nonsense"}, "task", "`task`: expected one of query"),
        ({"input": "a", "input_type": "query"}, "input_type", "by `task`"),
        ({"input": "a", "add_special_tokens": False}, "add_special_tokens", "give token ids"),
    ],
)
def test_what_is_wrong_is_named(live: Live, body: Any, param: str, words: str) -> None:
    status, answer = post(live, "/v1/embeddings", **body)
    assert status == 400
    assert answer["error"]["param"] == param
    assert words in answer["error"]["message"]
    assert answer["error"]["type"] == "invalid_request_error"


def test_a_text_that_is_too_long_is_one_of_openais_errors(live: Live) -> None:
    with pytest.raises(openai.BadRequestError, match="takes up to 1024") as caught:
        live.client().embeddings.create(model=NAME, input=["a", "two " * 1024])
    assert caught.value.code == "context_length_exceeded"


def test_ollamas_client_gets_the_same(live: Live, embedder: Embedder) -> None:
    ollama = pytest.importorskip("ollama")
    client = ollama.Client(f"http://{LOCAL}:{live.port}")
    whole = client.embed(NAME, TEXTS)
    expected = embedder.embed(TEXTS)
    np.testing.assert_array_equal(np.array(whole.embeddings, np.float32), expected)
    assert whole.prompt_eval_count == sum(map(len, embedder.tokens_of(TEXTS)))
    smaller = client.embed(NAME, TEXTS[0], dimensions=32).embeddings
    assert len(smaller[0]) == 32
    old = client.embeddings(NAME, TEXTS[1]).embedding
    np.testing.assert_array_equal(np.array(old, np.float32), expected[1])
    asked = {"prompt": TEXTS[1], "dimensions": 32, "task": "query", "colour": "blue"}
    answer = post(live, "/api/embeddings", **asked)[1]
    found = np.array([answer["embedding"]], np.float32)
    np.testing.assert_array_equal(found, embedder.embed(TEXTS[1], dimensions=32, task="query"))
    assert "`colour` (1)" in answer["note"]
    assert client.embed(NAME, "two " * 1024).embeddings, "cut, as Ollama cuts"
    with pytest.raises(ollama.ResponseError, match="takes up to 1024"):
        client.embed(NAME, "two " * 1024, truncate=False)
    empty: tuple[Any, ...] = (None, "", [])
    for nothing in empty:  # as Ollama, which loads the model then
        status, answer = post(live, "/api/embed", model=NAME, input=nothing)
        assert (status, answer["embeddings"], answer["prompt_eval_count"]) == (200, [], 0)
    assert client.show(NAME).capabilities == ["embedding"]
    assert [one.model for one in client.list().models] == [f"{NAME}:latest"]


@pytest.mark.parametrize("path", OF_REPLIES)
def test_replies_are_refused_by_name(live: Live, path: str) -> None:
    status, answer = post(live, path, model=NAME, messages=[{"role": "user", "content": "a"}])
    assert status == 400
    assert "makes embeddings of texts, and no replies" in json.dumps(answer)


def test_another_models_name_is_noted(live: Live) -> None:
    status, answer = post(live, "/v1/embeddings", model="other", input="a", colour="blue")
    assert status == 200
    assert "`other` does not exist" in answer["note"]
    assert "`colour` (1)" in answer["note"]
    assert live.client().models.retrieve(NAME).id == NAME
    with pytest.raises(openai.NotFoundError):
        live.client().models.retrieve("other")


def test_a_strict_server_refuses_both(embedder: Embedder, card: ModelCard) -> None:
    strict = {"strict_model": True, "strict_request": True}
    service = EmbeddingService(card, lambda: embedder, queue=1, **strict)
    with serving(embedding_routes(service, Limits(), None)) as live:
        assert post(live, "/v1/embeddings", model="other", input="a")[0] == 404
        status, answer = post(live, "/v1/embeddings", input="a", colour="blue")
    service.close()
    assert (status, answer["error"]["param"]) == (400, "colour")


def test_metrics_count_tokens(live: Live, embedder: Embedder) -> None:
    post(live, "/v1/embeddings", input=TEXTS)
    tokens = sum(map(len, embedder.tokens_of(TEXTS)))
    text = live.request("GET", "/metrics")[2].decode()
    assert f'gemma4_prompt_tokens_total{{source="read"}} {tokens}.0' in text
    assert json.loads(live.request("GET", "/slots")[2]) == {"slots": [], "waiting": 0}


class Loaded:
    """An encoder in a pool."""

    nbytes = 1

    def __init__(self, service: EmbeddingService) -> None:
        self.service = service
        self.app: Any = Router(embedding_routes(service, Limits(), None))
        self.is_alive, self.state = True, service.state
        self.begin_stop, self.close = service.begin_stop, lambda: None


def test_beside_a_chat_each_request_goes_to_who_can(
    service: EmbeddingService, card: ModelCard, embedder: Embedder
) -> None:
    loaded: list[str] = []

    def load(model: OfferedModel, _: int | None) -> Any:
        loaded.append(model.card.name)
        return Loaded(service)

    models = [OfferedModel(scripted_model(TOOL_TEMPLATE).card, "cpu", 1)]
    models.append(OfferedModel(card, "cpu", 1))
    pool = ModelPool(models, load, memory=2, free=lambda _: None, idle_s=3600, queue=4)
    chat = models[0].card.name
    try:
        with serving(model_routes(pool, Limits(), None, ResponseStore())) as live:
            for body in ({"model": chat, "input": "a"},):
                status, answer = post(live, "/v1/embeddings", **body)
                assert status == 400
                assert f"`{chat}` makes replies and no embeddings" in answer["error"]["message"]
            status, answer = post(live, "/api/embed", model=chat, input="a")
            assert (status, "no embeddings" in answer["error"]) == (400, True)
            status, answer = post(live, "/v1/chat/completions", model=NAME, messages=[])
            assert (status, "no replies" in answer["error"]["message"]) == (400, True)
            assert not loaded, "known before any is loaded"
            for body in ({"input": TEXTS[0]}, {"input": TEXTS[0], "model": NAME}):
                status, answer = post(live, "/v1/embeddings", **body)
                assert status == 200, answer
                found = np.array(answer["data"][0]["embedding"], np.float32)
                np.testing.assert_array_equal(found, embedder.embed(TEXTS[0])[0])
            assert loaded == [NAME]
            # as `ollama stop` asks
            status, answer = post(live, "/api/generate", model=NAME, keep_alive=0)
            assert (status, answer.get("done_reason")) == (200, "unload"), answer
            assert [one.status for one in pool.statuses()] == ["unloaded", "unloaded"]
            # after an answer, as programs do that need the room for a chat; and without a text
            for given in (TEXTS[0], ""):
                status, answer = post(live, "/api/embed", model=NAME, input=given, keep_alive="0s")
                assert (status, len(answer["embeddings"])) == (200, 1 if given else 0)
                # once the answer is sent, which may be read before
                until(lambda: {one.status for one in pool.statuses()} == {"unloaded"}, "it goes")
            assert loaded == [NAME, NAME]
    finally:
        pool.close()


def test_a_queue_has_an_end(card: ModelCard, embedder: Embedder) -> None:
    gate, entered = threading.Event(), threading.Event()

    class Slow:
        dimensions, settings = embedder.dimensions, embedder.settings

        def tokens_of(self, texts: Any, **_: Any) -> Any:
            return embedder.tokens_of(texts)

        def embed_tokens(self, texts: Any, **_: Any) -> Any:
            entered.set()
            assert gate.wait(120)
            return embedder.embed_tokens(texts)

    slow: Any = Slow()
    service = EmbeddingService(card, lambda: slow, queue=0)
    with serving(embedding_routes(service, Limits(), None)) as live:
        answers: list[int] = []
        first = threading.Thread(
            target=lambda: answers.append(post(live, "/v1/embeddings", input="a")[0])
        )
        first.start()
        assert entered.wait(120)
        status, answer = post(live, "/v1/embeddings", input="b")
        gate.set()
        first.join(120)
        assert answers == [200]
        assert (status, answer["error"]["code"]) == (429, "queue_full")
        service.begin_stop()
        assert post(live, "/v1/embeddings", input="c")[0] == 503
    service.close()


def test_what_fails_to_load_is_told_at_once(card: ModelCard) -> None:
    def load() -> Embedder:
        raise ValueError("no room")

    with pytest.raises(ValueError, match="no room"):
        EmbeddingService(card, load, queue=1)


def test_a_key_is_asked_for(service: EmbeddingService) -> None:
    with serving(embedding_routes(service, Limits(), "secret")) as live:
        assert post(live, "/v1/embeddings", input="a")[0] == 401
        assert live.client("secret").embeddings.create(model=NAME, input="a").data
