"""Lines of measures, of reports of this version and of earlier ones."""

from __future__ import annotations

from gemma4_compile.verification.frontier_table import text_head, text_line, text_title

MEASURES = {
    **{"kl_mean": 0.0125, "kl_max": 1.5, "top1": 0.75, "top5": 0.8},
    **{"perplexity": 12.0, "reference_perplexity": 10.0},
}


def test_cells_stand_below_their_names() -> None:
    head, line = text_head(), text_line({**MEASURES, "kl_p99": 0.5})
    assert line == "    0.0125       0.5   75.0%   80.0%  12 (10)"
    for name, cell in (("mean KL", "0.0125"), ("99 %", "0.5"), ("top-1", "75.0%")):
        assert head.index(name) + len(name) == line.index(cell) + len(cell)
    assert "1.5" not in text_line(MEASURES), "the largest is another measure"


def test_a_text_says_what_was_cut() -> None:
    assert text_title("code", {"tokens": 20, "cut_tokens": 0}) == "code: 20 tokens"
    shown = text_title("code", {"tokens": 20, "cut_tokens": 3})
    assert shown == "code: 20 tokens, 3 more cut off"
