"""The table and the picture of a numerics report hold what the report holds."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from gemma4_compile.verification.report import picture, table


def content(*, passed: bool = True, relative: float = 1e-3) -> dict[str, Any]:
    logits = {
        "positions": 3,
        "kl_mean": 0.0125,
        "kl_max": 0.5,
        "top1": 0.75,
        "top5": 0.8,
        "max_error": 0.25,
        "perplexity": 12.0,
        "reference_perplexity": 10.0,
    }
    layer = {
        "cosine_min": 0.9,
        "cosine_mean": 0.99,
        "max_error": 0.1,
        "relative_error": relative,
    }
    worst = {**layer, "cosine_mean": 0.97}
    bounds = {"kl_mean": 1, "top1": 0.5, "top5": 0.5, "cosine": 0.9, "perplexity_ratio": 2}
    comparison = {"logits": logits, "layers": [layer, worst, layer], "thresholds": bounds}
    return {
        "passed": passed,
        "failures": [] if passed else ["arithmetic: top-1 agreement"],
        "package": {
            "target": "cpu",
            "recipe": "q4f16",
            "activations": "float",
            "device": "cpu",
        },
        "reference": {"versions": {"transformers": "5.24.0", "torch": "2.13.0"}},
        "text": {
            "decoded": 8,
            "long_prompt": 24,
            "window": 8,
            "longer_than_two_windows": passed,
        },
        "arithmetic": comparison,
        "whole": comparison,
        "consistency": {
            "chunk": 7,
            "chunked_prefill_kl": 0.0,
            "chunked_prefill_max_error": 0.0,
            "decode_kl": 0.0,
            "decode_max_error": 0.0,
            "probe_kl": 0.0,
            "probe_max_error": 0.0,
        },
    }


def test_table_of_a_good_package() -> None:
    text = table(content())
    assert text.startswith("numerics: passed\n")
    assert "top-1 agreement                 75.0%                 >= 50%" in text
    assert "12 (10)               ratio 1.2 <= 2" in text
    assert "lowest mean cosine, layer 1     0.9700000" in text
    assert "failed" not in text
    assert "too short" not in text
    assert len(table(content(), layers=False).splitlines()) == len(text.splitlines()) - 6


def test_the_table_names_what_was_not_finite() -> None:
    values = content()
    assert "not finite" not in table(values)
    values["reference"]["nonfinite_weights"] = {"norm.weight": 2, "embed_tokens.weight": 1}
    line = "note: 3 weights of the checkpoint are not finite; package and reference have 0 in their"
    assert line in table(values)


def test_table_of_a_bad_package() -> None:
    text = table(content(passed=False))
    assert text.startswith("numerics: FAILED\n")
    assert text.endswith("failed: arithmetic: top-1 agreement")
    assert "too short for a prompt of more than two windows" in text


def medium(*, fits: bool = True) -> dict[str, Any]:
    rows = {"mean_error": 1e-5, "max_error": 2e-4, "relative_error": 3e-3, "worst_row": 0.1}
    one = {
        "rows": rows,
        "rows_bound": 0.02,
        "logits": {"kl_mean": 0.25, "top1": 0.5} if fits else None,
        "thresholds": {"kl_mean": 1, "top1": 0.4},
    }
    return {
        "shown": {"rows": 6, "blocks_across": 3, "blocks_down": 2, "samples": 24_000},
        "prompt": 20 if fits else None,
        "decoded": 4 if fits else 0,
        "weights": {"tensor": "q_proj", "error": 0.001, "bound": 0.02},
        "arithmetic": one,
        "whole": one,
    }


def test_the_table_shows_pictures_and_sounds() -> None:
    text = table({**content(), "media": {"image": medium(), "audio": medium()}})
    assert "a picture of 3 x 2 blocks, 6 rows; 4 tokens decoded after it\n" in text
    assert "a sound of 1.50 s, 6 rows; 4 tokens decoded after it\n" in text
    assert text.count("relative error of the rows            0.003         <= 0.02") == 4
    assert text.count("greedy tokens that agree              50.0%         >= 40%") == 4
    assert text.count("largest error of a stored weight row    0.001         <= 0.02") == 2
    assert "too short for it" not in text


def test_the_table_shows_texts_and_the_bits_of_a_weight() -> None:
    old = table(content())
    assert "bits a weight" not in old, "a report of an earlier version"
    assert "every position" not in old
    values = content()
    values["package"] |= {"weights": 4096, "weights_bytes": 2304, "bits_per_weight": 4.5}
    measures = {**values["whole"]["logits"], "kl_p99": 0.4}
    values["texts"] = {
        "chat": {
            **{"tokens": 40, "cut_tokens": 7, "decoded": 8, "stored": measures},
            "whole": values["whole"]["logits"],
        }
    }
    text = table(values)
    assert "4,096 weights in 0.0 MiB: 4.500 bits a weight\n" in text
    assert "  chat: 40 tokens, 7 more cut off\n" in text
    assert (
        "its weights alone, at every position        0.0125       0.4   75.0%   80.0%  12 (10)"
        in text
    )
    assert "the package, 8 tokens decoded" in text


def test_the_table_says_what_has_no_room() -> None:
    text = table({**content(), "media": {"image": medium(fits=False)}})
    assert "context is too short for it: its rows alone were run" in text
    assert "greedy tokens that agree" not in text
    assert "sound" not in text


@pytest.mark.parametrize("relative", [0.0, 1e-12, 1e-3, 1.0, 1e9, float("nan"), float("inf")])
def test_picture_is_well_formed_whatever_the_errors(relative: float) -> None:
    root = ElementTree.fromstring(picture(content(relative=relative)))
    _, _, width, height = (float(value) for value in root.attrib["viewBox"].split())
    circles = root.findall("{http://www.w3.org/2000/svg}circle")
    assert len(circles) == 6
    for circle in circles:
        assert 0 <= float(circle.attrib["cx"]) <= width
        assert 0 <= float(circle.attrib["cy"]) <= height
