"""Tokens a step of `tiny` with its drafter: `python -m tools.training.tiny.evaluate_drafter`.

Held-out dialogues, each up to its last question, are answered by greedy decoding in compiled
packages on the CPU, as gemma4-chat does with `--draft N`; the counts are the runtime's.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer

from gemma4_compile.compile.pipeline import compile_model
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.runtime import Engine, Package
from gemma4_compile.runtime.engine.generation import Generator
from gemma4_compile.runtime.sampling.sampling import SamplingOptions, make_sampler
from gemma4_compile.runtime.speculative.draft_pace import Drafting
from gemma4_compile.tiny.checkpoint import shipped_file
from tools.training.tiny.evaluate import PREFILL_CHUNK, Silent, Task, tasks
from tools.training.tiny.further import all_evaluation_dialogues

MOST_TOKENS = 100  # of a reply


def answered(package: Package, drafts: int, questions: Sequence[Task]) -> dict[str, Drafting]:
    """Counts by the kind of the question."""
    engine = Engine(package, drafts=drafts)
    generator = Generator(engine, package.load_tokenizer(), package.stop_token_ids)
    found: dict[str, Drafting] = defaultdict(Drafting)
    for question in questions:
        sampler = make_sampler(SamplingOptions(temperature=0.0), 1)
        reply = generator.start(question.prompt, sampler, max_tokens=MOST_TOKENS, plain=True)
        for _ in reply:
            pass
        counts = reply.drafting
        assert counts is not None, "the package has a drafter"
        before = found[question.kind]
        found[question.kind] = Drafting(
            before.steps + counts.steps,
            before.guessed + counts.guessed,
            before.accepted + counts.accepted,
        )
    return found


def _line(name: str, counts: Drafting) -> str:
    share = counts.accepted / max(counts.guessed, 1)
    return f"{name:<24}{counts.tokens_per_step:>14.2f}{share:>12.1%}"


def main() -> None:
    """Compile, answer, and print tokens a step by kind."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--recipes", nargs="+", default=["q4f16", "f32"])
    parser.add_argument("--drafts", type=int, default=4, help="guesses of a step")
    parser.add_argument("--per-kind", type=int, default=10, help="dialogues")
    parser.add_argument("--seed", type=int, default=1, help="of the dialogues")
    parser.add_argument("--drafter", default="tiny", help="`tiny` or a directory")
    options = parser.parse_args()
    tokenizer = Tokenizer.from_str(shipped_file("tokenizer.json").decode())
    questions = tasks(all_evaluation_dialogues(options.per_kind, options.seed), tokenizer)
    for recipe in options.recipes:
        with tempfile.TemporaryDirectory() as folder:
            request = CompileRequest("tiny", "cpu", recipe, Path(folder, "package"))
            request = replace(request, prefill_chunk=PREFILL_CHUNK, drafter=options.drafter)
            compile_model(request, Silent())
            found = answered(Package.open(request.output), options.drafts, questions)
        print(f"{recipe:<24}{'tokens a step':>14}{'came true':>12}")
        for kind in sorted(found):
            print(_line(kind, found[kind]))
        whole = Drafting(
            sum(one.steps for one in found.values()),
            sum(one.guessed for one in found.values()),
            sum(one.accepted for one in found.values()),
        )
        print(_line(f"all {len(questions)}", whole))


if __name__ == "__main__":
    main()
