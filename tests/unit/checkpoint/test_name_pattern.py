from __future__ import annotations

import itertools
import random
import re
import time

import pytest

from gemma4_compile.checkpoint.name_pattern import (
    MatchClock,
    NamePattern,
    TooMuchWork,
    UnreadPattern,
)

MODULES = [
    f"{front}{middle}"
    for front, middle in itertools.product(
        ("", "model.", "model.language_model.", "base_model.model.model.vision_tower.encoder."),
        (
            "layers.0.self_attn.q_proj",
            "layers.17.self_attn.o_proj",
            "layers.3.mlp.gate_proj",
            "layers.10.mlp.experts.127.down_proj",
            "layers.5.per_layer_input_gate",
            "embed_tokens",
            "lm_head",
            "embed_vision.embedding_projection",
            "audio_tower.layers.2.conv_module.linear_start",
        ),
    )
]
REAL = [
    ".*lm_head",
    r".*vision_tower.*",
    r"(?!.*vision).*",
    r"^(?!.*(?:vision|audio)_tower).*\.(?:q|k|v|o|gate|up|down)_proj$",
    r"model\.language_model\.layers\.\d+\.(self_attn|mlp)\.(q|k|v|o|gate|up|down)_proj",
    r"model.*(language_model).*.(up_proj|k_proj|linear_2|down_proj|v_proj|q_proj|o_proj|gate_proj|linear_1).*",
    r".*self_attn.*",
    r".*mlp.experts.\d+.(gate|up|down)_proj",
    r".*\.layers\.(?:0|1|2|3|10|17)\..*",
    r"layers.[0-9]+.mlp",
    r".*embed_tokens$|lm_head",
    r".*(?<!vision)\.layers\..*proj",
    r"\w+",
    # unsloth's `get_peft_regex` of language layers
    r"(?:.*?(?:language|text).*?(?:self_attn|attention|attn|mlp|feed_forward|ffn|dense).*?"
    r"(?:k_proj|v_proj|q_proj|out_proj|fc1|fc2|o_proj|gate_proj|up_proj|down_proj).*?)|"
    r"(?:\bmodel\.layers\.[\d]{1,}\.(?:self_attn|attention|attn|mlp|feed_forward|ffn|dense)\.(?:"
    r"(?:k_proj|v_proj|q_proj|out_proj|o_proj|gate_proj|up_proj|down_proj)))",
]


@pytest.mark.parametrize("pattern", REAL)
def test_patterns_of_checkpoints_fit_what_re_fits(pattern: str) -> None:
    found, expected = NamePattern(pattern), re.compile(pattern)
    for module in MODULES:
        assert found.begins(module) == (expected.match(module) is not None), module
        assert found.is_whole(module) == (expected.fullmatch(module) is not None), module


ATOMS = [*"abc", ".", "[ab]", "[^a]", "[a-b.]", r"\w", r"\W", r"\d", r"\.", r"\b", r"\B"]
PLACES = ["^", "$", r"\A", r"\Z", ""]
TIMES = ["*", "+", "?", "*?", "+?", "??", "{2}", "{1,3}", "{0,2}?", "{2,}"]
GROUPS = ["(", "(?:", "(?=", "(?!", "(?<=", "(?<!"]


def _pattern(chance: random.Random, depth: int) -> str:
    kind = chance.random()
    if depth == 0 or kind < 0.35:
        return chance.choice(ATOMS + PLACES)
    if kind < 0.55:
        return _pattern(chance, depth - 1) + _pattern(chance, depth - 1)
    inner = _pattern(chance, depth - 1)
    if kind < 0.7:
        return f"(?:{inner}|{_pattern(chance, depth - 1)})"
    if kind < 0.88:
        return f"(?:{inner}){chance.choice(TIMES)}"
    return f"{chance.choice(GROUPS)}{inner})"


def test_random_patterns_fit_what_re_fits() -> None:
    chance, fits, compared = random.Random(7), 0, 0
    while compared < 8000:
        pattern = _pattern(chance, 4)
        try:
            expected = re.compile(pattern)
        except re.error:
            continue  # lookbehinds of no fixed width
        found = NamePattern(pattern)
        for _ in range(8):
            name = "".join(chance.choices("ab.c1\n", k=chance.randrange(8)))
            is_begun, is_whole = found.begins(name), found.is_whole(name)
            assert is_begun == (expected.match(name) is not None), (pattern, name)
            assert is_whole == (expected.fullmatch(name) is not None), (pattern, name)
            fits, compared = fits + is_whole, compared + 1
    assert 400 < fits < compared - 400


NAME = "a" * 60 + "!"
HOSTILE = {
    "alternatives": "(?:a|aa)" * 40 + "$",
    "nested alternatives": "(?:a|(?:a|(?:aa|aaa)))" * 30 + "b",
    "alternatives in one": "(?:(?:a|a)(?:a|a)(?:aa|a)){12}b",
    "optional": "a?" * 50 + "a" * 50 + "b",
    "optional groups": "(?:aa?)?" * 40 + "b",
    "nested repeats": "(a+)+b",
    "deeply nested repeats": "(?:" * 12 + "a" + ")*" * 12 + "b",
    "counted repeats": "(?:(?:a{1,9}){1,9}){1,9}b",
    "empty repeats": "(?:(?:(?:a?){1000}){1000}){1000}b",
    "overlapping classes": r"(?:[a-z]|[a-c]|\w|[^b])+b",
    "repeated classes": r"\w*[a-z]*[^b]*\w+[a-c]*.*b",
    "lookahead": "(?=(?:a|aa)+b)a|(?!(?:a+)+b)b",
    "lookaheads in a repeat": "(?:(?=(?:a|aa)*b)a|(?!(?:a|aa)*$)a)*b",
    "lookbehind": "(?:(?<=a)(?:a|aa)|a)*(?<!aa)b",
    "many stars": ".*" * 200 + "b",
    "lazy": "(?:a+?)+?" * 20 + "b",
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_patterns_are_matched_in_bounded_work(case: str) -> None:
    pattern = NamePattern(HOSTILE[case])
    begin = time.process_time()
    assert not pattern.is_whole(NAME)
    assert time.process_time() - begin < 5, "2^30 ways would take minutes"


def test_work_has_an_end() -> None:
    inner = "(?=.*" * 8 + "b" + ")" * 8
    begin = time.process_time()
    with pytest.raises(TooMuchWork, match="too many steps"):
        NamePattern(f"(?:.*{inner})*b").is_whole("a" * 4000)
    with pytest.raises(TooMuchWork, match="more than 4096 letters"):
        NamePattern(".*").begins("a" * 5000)
    assert time.process_time() - begin < 5


def test_letters_of_a_class_are_counted() -> None:
    """Each of a name's letters was held against each class as a part of one step."""
    name = "".join(map(chr, range(0x4E00, 0x4E00 + 4096)))
    with pytest.raises(TooMuchWork, match="too many steps"):
        NamePattern(r"[a-z]*\d*[^b]*\w*" * 2 + "b").begins(name)


def test_random_classes_fit_what_re_fits() -> None:
    chance = random.Random(3)
    for _ in range(300):
        ends = [sorted(chance.choices("abcdefgh", k=2)) for _ in range(chance.randrange(1, 5))]
        items = "".join(chance.choice((f"{first}-{last}", first)) for first, last in ends)
        pattern = f"[{chance.choice(('', '^'))}{items}{chance.choice(('', chr(92) + 'd', '.'))}]"
        found, expected = NamePattern(pattern), re.compile(pattern)
        for letter in "abcdefgh.1-":
            assert found.begins(letter) == (expected.match(letter) is not None), (pattern, letter)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"(a)\1", "refers to a group"),
        (r"(?P<a>a)(?P=a)", "refers to a group"),
        (r"(a)?(?(1)b|c)", "refers to a group"),
        ("(?i)a", "has flags"),
        ("(?i:a)", "has flags"),
        ("(?s)a", "has flags"),
        ("a" * 5000, "has 5000 letters"),
        ("(" * 60 + "a" + ")" * 60, "more than 40 groups"),
    ],
)
def test_what_is_not_matched_in_bounded_work(pattern: str, why: str) -> None:
    with pytest.raises(UnreadPattern, match=why):
        NamePattern(pattern)


def test_all_work_together_has_a_clock() -> None:
    clock = MatchClock(seconds=0.0)
    with pytest.raises(TooMuchWork, match="in all"):
        clock.timed(lambda: NamePattern("a" * 200).begins("a"))
