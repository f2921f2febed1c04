"""Fields of other servers' embeddings."""

from __future__ import annotations

import pytest

from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.embeddings.asks import ASKS
from gemma4_compile.runtime.server.embeddings.requests import read_embed, read_openai, read_prompt
from gemma4_compile.runtime.server.fields import Ignored


@pytest.mark.parametrize("name", ASKS)
def test_what_asks_for_other_vectors_is_refused_by_name(name: str) -> None:
    for read in (read_openai, read_embed, read_prompt):
        text = {"prompt" if read is read_prompt else "input": "a"}
        with pytest.raises(ApiError, match=f"`{name}`: .*found 'other'") as caught:
            read({**text, name: "other"}, Ignored())
        assert (caught.value.status, caught.value.param) == (400, name)
        for nothing in (None, "", *ASKS[name].neutral):
            assert list(read({**text, name: nothing}, Ignored()).texts) == ["a"]


def test_what_cannot_change_a_vector_is_counted() -> None:
    ignored = Ignored()
    read_openai({"input": "a", "truncate": "END", "priority": 1}, ignored)
    assert "`truncate` (1), `priority` (1)" in str(ignored.note())
