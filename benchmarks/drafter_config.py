"""Configs of drafters of released sizes: a library needs no more of one.

`python -m benchmarks.drafter_config gemma-4-E2B-it FOLDER` writes FOLDER/config.json, which
`gemma4-compile gemma-4-E2B-it --drafter FOLDER --only library` takes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from gemma4_compile.model_spec.config.gemma4 import PRESETS_DIR

# hidden_size, intermediate_size, num_attention_heads, and whether the head is clustered.
SIZES = {
    "gemma-4-E2B-it": (256, 2048, 4, True),
    "gemma-4-E4B-it": (256, 2048, 4, True),
    "gemma-4-12B-it": (1024, 8192, 16, False),
    "gemma-4-26B-A4B-it": (1024, 8192, 16, False),
    "gemma-4-31B-it": (1024, 8192, 32, False),
}
LAYERS = ("sliding_attention",) * 3 + ("full_attention",)


def drafter_values(preset: str) -> dict[str, Any]:
    """`config.json` of a preset's drafter; what both share is the preset's."""
    target = json.loads((PRESETS_DIR / f"{preset}.json").read_text("utf-8"))
    hidden, intermediate, heads, clustered = SIZES[preset]
    unified = target["model_type"] == "gemma4_unified"
    text = {
        **target["text_config"],
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_attention_heads": heads,
        "num_hidden_layers": len(LAYERS),
        "layer_types": list(LAYERS),
        "num_kv_shared_layers": len(LAYERS),
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
        "use_double_wide_mlp": False,
        "enable_moe_block": False,
        "final_logit_softcapping": None,
    }
    return {
        "model_type": "gemma4_unified_assistant" if unified else "gemma4_assistant",
        "dtype": "bfloat16",
        "backbone_hidden_size": target["text_config"]["hidden_size"],
        "use_ordered_embeddings": clustered,
        "tie_word_embeddings": True,
        "text_config": text,
    }


def main() -> None:
    """Write one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("preset", choices=SIZES)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    values = json.dumps(drafter_values(options.preset), indent=2)
    (options.folder / "config.json").write_text(values + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
