"""`gemma4-serve` with an encoder: alone, and beside a chat."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openai
import pytest

from gemma4_compile.errors import UsageError
from gemma4_compile.options.serve import COMMAND
from gemma4_compile.runtime import Embedder, serve_several
from gemma4_compile.runtime.served_embedder import load_embedder
from tests.serving import serving
from tests.tiny_embedder import embedder_package


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return embedder_package(tmp_path_factory)


def test_its_memory_and_its_texts_are_those_of_the_package(package: Path) -> None:
    options = COMMAND.parse([str(package), "--context-length", "64"])
    loaded = load_embedder(options, package, "e")
    assert loaded.is_alive
    assert loaded.nbytes > 0
    assert loaded.service.card.context_length == 64
    assert loaded.state().waiting == 0
    loaded.begin_stop()
    assert not loaded.is_alive
    loaded.close()
    with pytest.raises(UsageError, match="compiled for 1024 tokens, found 2048"):
        load_embedder(COMMAND.parse([str(package), "--context-length", "2048"]), package, "e")


def test_beside_others_it_takes_no_longer_texts_than_it_was_compiled_for(package: Path) -> None:
    """The option is meant for the replies of the models beside it."""
    for wanted, found in ((2048, 1024), (64, 64)):
        options = COMMAND.parse(["--model", f"e={package}", "--context-length", str(wanted)])
        offered = serve_several._offered(options, "e", package, serves_page=False)
        assert offered.model.card.context_length == found


@pytest.mark.parametrize("several", [False, True], ids=["alone", "beside a chat"])
def test_the_command_serves_it(package: Path, tiny_package: Path, several: bool) -> None:
    name = "e" if several else package.name
    models = ("--model", f"chat={tiny_package}", "--model", f"e={package}")
    with serving(*(models if several else (package,))) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        (found,) = client.embeddings.create(model=name, input="Ann has two apples.").data
        said: list[openai.types.chat.ChatCompletionMessageParam]
        said = [{"role": "user", "content": "Hi"}]
        if several:
            assert client.chat.completions.create(model="chat", messages=said, max_tokens=1)
        with pytest.raises(openai.BadRequestError, match="no replies"):
            client.chat.completions.create(model=name, messages=said)
    expected = Embedder.open(package).embed("Ann has two apples.")[0]
    np.testing.assert_array_equal(np.array(found.embedding, np.float32), expected)
