"""Learns `tiny`'s tokenizer from the dialogues of the closed world.

Special tokens have Gemma 4's ids where they fit into the vocabulary (0 to 107); the media markers,
whose ids do not, come last. Digits stay single, as in Gemma 4's own tokenizer. Run `python -m
tools.training.tiny.tokenizer` after a change of the world; the weights must then be trained again.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from tools.training.tiny.dialogues import training_dialogue

OUTPUT = (
    Path(__file__).resolve().parents[3] / "gemma4_compile" / "tiny" / "files" / "tokenizer.json"
)
VOCAB_SIZE = 1024
CORPUS_DIALOGUES = 20_000
SPACE = "\u2581"

CONTROL_TOKENS = {
    0: "<pad>",
    1: "<eos>",
    2: "<bos>",
    3: "<unk>",
    4: "<mask>",
    46: "<|tool>",
    47: "<tool|>",
    48: "<|tool_call>",
    49: "<tool_call|>",
    50: "<|tool_response>",
    51: "<tool_response|>",
    52: '<|"|>',
    98: "<|think|>",
    100: "<|channel>",
    101: "<channel|>",
    105: "<|turn>",
    106: "<turn|>",
}
FIRST_TEXT_ID = 107
MEDIA_TOKENS = (
    "<|image>",
    "<|audio>",
    "<|image|>",
    "<|audio|>",
    "<image|>",
    "<audio|>",
    "<|video|>",
)


def _fixed_pieces() -> list[str]:
    """Pieces before the learned ones: control tokens, newline runs, space runs, bytes."""
    unused = 0
    pieces = []
    for index in range(FIRST_TEXT_ID):
        name = CONTROL_TOKENS.get(index)
        if name is None:
            name, unused = f"<unused{unused}>", unused + 1
        pieces.append(name)
    pieces += ["\n" * count for count in (1, 2, 3, 4)]
    pieces += [SPACE * count for count in (2, 3, 4, 8)]
    pieces += [f"<0x{byte:02X}>" for byte in range(256)]
    return pieces


def _corpus() -> list[str]:
    lines = []
    for seed in range(CORPUS_DIALOGUES):
        for role, text in training_dialogue(seed).messages():
            lines += ["model" if role == "assistant" else role, text]
    return lines


def _learn(count: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Characters and merged pieces, `count` in all, and the merges in order."""
    learner = Tokenizer(models.BPE())
    learner.normalizer = normalizers.Replace(" ", SPACE)
    learner.pre_tokenizer = pre_tokenizers.Split(
        Regex(f"{SPACE}?\\p{{L}}+|\\p{{N}}|{SPACE}?[^\\p{{L}}\\p{{N}}{SPACE}]+|{SPACE}"), "isolated"
    )
    alphabet = [chr(code) for code in range(33, 127)]
    trainer = trainers.BpeTrainer(vocab_size=count, initial_alphabet=alphabet, show_progress=False)
    learner.train_from_iterator(_corpus(), trainer)
    with tempfile.TemporaryDirectory() as folder:
        learner.save(f"{folder}/learned.json")
        model = json.loads(Path(folder, "learned.json").read_text(encoding="utf-8"))["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return pieces, [(left, right) for left, right in model["merges"]]


def _run_merges() -> list[tuple[str, str]]:
    """Merges that make runs of newlines and of spaces out of shorter runs."""
    newlines = [("\n", "\n"), ("\n\n", "\n\n"), ("\n\n", "\n")]
    spaces = [(SPACE, SPACE), (SPACE * 2, SPACE * 2), (SPACE * 4, SPACE * 4), (SPACE * 2, SPACE)]
    return newlines + spaces


def tokenizer_json() -> dict[str, Any]:
    """The whole file: BPE with byte fallback over text that is split at newline runs only."""
    fixed = _fixed_pieces()
    learned, merges = _learn(VOCAB_SIZE - len(fixed) - len(MEDIA_TOKENS))
    pieces = [*fixed, *learned, *MEDIA_TOKENS]
    if len(pieces) != VOCAB_SIZE or len(set(pieces)) != VOCAB_SIZE:
        raise SystemExit(f"expected {VOCAB_SIZE} pieces, found {len(set(pieces))}: longer corpus?")
    special = [
        index
        for index, piece in enumerate(pieces)
        if index < FIRST_TEXT_ID or piece in MEDIA_TOKENS
    ]
    flags = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": index, "content": pieces[index], **flags} for index in special],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": "\\n+"},
            "behavior": "Isolated",
            "invert": False,
        },
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {piece: index for index, piece in enumerate(pieces)},
            "merges": [list(pair) for pair in [*_run_merges(), *merges]],
        },
    }


def main() -> None:
    """Write the file, or print it with `-`."""
    text = json.dumps(tokenizer_json(), ensure_ascii=False, indent=1) + "\n"
    if sys.argv[1:] == ["-"]:
        sys.stdout.write(text)
    else:
        OUTPUT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
