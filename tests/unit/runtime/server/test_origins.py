from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.live_server import Live, serving

OUR_PAGE = "https://chat.example"


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with serving([], origins=[OUR_PAGE]) as live:
        yield live


@pytest.mark.parametrize(
    ("origin", "named"),
    [
        ("https://x.example", "--allow-origin https://x.example"),
        ("chrome-extension://abc", "--allow-origin chrome-extension://abc"),
        ("null", "such as files"),
        ("x" * 200, "of no origin that can be allowed"),
        ("`; echo", "of no origin that can be allowed"),
    ],
)
def test_a_page_that_is_refused_is_told_of_in_answer_and_log(
    live: Live, origin: str, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    asked = {"Access_Control_Request_Method": "POST", "Origin": origin}
    status, headers, body = live.request("OPTIONS", "/v1/chat/completions", **asked)
    assert (status, json.loads(body)["error"]["code"]) == (400, "unknown_origin")
    assert named in json.loads(body)["error"]["message"]
    assert "access-control-allow-origin" not in headers
    again = len(caplog.records)
    assert live.request("OPTIONS", "/v1/chat/completions", **asked)[0] == 400
    assert len(caplog.records) == again  # once is enough: any page may ask


def test_a_page_may_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with serving([]) as live:
        for number in range(20):
            origin = f"https://{number}.example"
            asked = {"Access_Control_Request_Method": "POST", "Origin": origin}
            assert live.request("OPTIONS", "/health", **asked)[0] == 400
        assert live.request("OPTIONS", "/health")[0] == 405  # no page asks
    told = [record for record in caplog.records if "--allow-origin" in record.getMessage()]
    assert 0 < len(told) < 20
