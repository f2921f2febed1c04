"""A process that runs a package by the launcher; `tests.metal.fake` starts it."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from gemma4_compile.runtime import Engine
from gemma4_compile.runtime.device import metal_launcher
from tests.metal.launcher_steps import ALIVE, Asked, load


def _answer(asked: Asked) -> dict[str, Any]:
    engine = Engine.open(Path(asked["package"]))
    digests = []
    for step in [asked["prompt"], *asked["tokens"]]:
        logits = engine.prefill(step) if isinstance(step, list) else engine.decode(step)
        digests.append(hashlib.sha256(logits.tobytes()).hexdigest())
    before = metal_launcher.counts()
    uniform = iter(asked["uniform"])
    drawn = engine.sampling.sampled(1.0, 0.9, lambda: next(uniform))
    tokens = [next(drawn) for _ in asked["uniform"]]
    after = metal_launcher.counts()
    drawn.close()
    return {
        "logits": digests,
        "drawn": tokens,
        "pipelines": {name: after[f"{name} pipelines"] for name in ("kept", "new")},
        "counts": {name: after[name] - before[name] for name in after},
    }


def main() -> None:
    """Read what is asked, and print what is found."""
    asked = json.load(sys.stdin)
    fake = load(asked)
    answer = _answer(asked)
    metal_launcher.wait()
    answer["alive"] = [name for name in ALIVE if fake.fake_alive(name.encode())]
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
