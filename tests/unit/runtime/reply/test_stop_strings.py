from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from gemma4_compile.runtime.reply.stop_strings import StopStrings

texts = st.text(st.sampled_from("ab"), max_size=12)
stops = st.lists(st.text(st.sampled_from("ab"), min_size=1, max_size=3), max_size=3)


@given(texts, stops, st.lists(st.integers(0, 12), max_size=4))
@example("aab", ["ab"], [1, 2])
def test_text_ends_before_the_first_stop_string_however_it_is_cut(
    text: str, strings: list[str], cuts: list[int]
) -> None:
    ends = sorted({min(cut, len(text)) for cut in cuts} | {len(text)})
    stream, told, begin = StopStrings(strings), "", 0
    stopped = False
    for end in ends:
        ready, stopped = stream.push(text[begin:end])
        told, begin = told + ready, end
        if stopped:
            break
    told += "" if stopped else stream.flush()
    # A longer string that ends together with a shorter one, or later, may begin before it.
    assert stopped == any(string in text for string in strings)
    assert not any(string in told for string in strings)
    assert text.startswith(told)
    if stopped:
        assert any(text[len(told) :].startswith(string) for string in strings)
    else:
        assert told == text


def test_nothing_is_held_back_without_need() -> None:
    stream = StopStrings(["END", "\n\n"])
    assert stream.push("the EN") == ("the ", False)
    assert stream.push("emy\n") == ("ENemy", False)
    assert stream.push("x") == ("\nx", False)
    assert stream.push("END of") == ("", True)
    assert StopStrings([]).push("x") == ("x", False)
