"""A comparison of recipes as a table for people."""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_compile.types import JsonObject

_WIDTHS = (10, 10, 8, 8)


def text_head() -> str:
    """The head of lines as `text_line` makes them."""
    names = ("mean KL", "99 %", "top-1", "top-5")
    cells = (f"{name:>{width}}" for name, width in zip(names, _WIDTHS, strict=True))
    return "".join(cells) + "  perplexity (reference)"


def text_line(found: JsonObject) -> str:
    """Divergence (mean, and of the position that a hundredth exceed), agreement, perplexity."""
    high = f"{found['kl_p99']:.3g}" if "kl_p99" in found else ""
    return (
        f"{found['kl_mean']:>10.3g}{high:>10}{found['top1']:>8.1%}{found['top5']:>8.1%}"
        f"  {found['perplexity']:.4g} ({found['reference_perplexity']:.4g})"
    )


def text_title(name: str, text: JsonObject) -> str:
    """What a text is called, with its tokens."""
    cut = f", {text['cut_tokens']} more cut off" if text["cut_tokens"] else ""
    return f"{name}: {text['tokens']} tokens{cut}"


def frontier_table(content: JsonObject) -> str:
    """Recipes with what they cost and save, then a table for each text."""
    versions = content["versions"]
    return "\n".join(
        [
            f"recipes against float32, by transformers {versions['transformers']} "
            f"(torch {versions['torch']}) on {content['device']}",
            *_costs(content),
            *(line for name in content["texts"] for line in _of_text(content, name)),
            *(f"note: the model has no {name} form" for name in content["left_out"]),
        ]
    )


def _costs(content: JsonObject) -> Iterator[str]:
    yield ""
    yield (
        f"{'':<24}{'bits a':>8}{'':>12}{'MiB a':>10}   of all texts together\n"
        f"{'recipe':<24}{'weight':>8}{'MiB':>12}{'token':>10}   {text_head()}"
    )
    for one in content["recipes"]:
        yield (
            f"{one['name']:<24}{one['bits_per_weight']:>8.3f}{one['weights_bytes'] / 2**20:>12.1f}"
            f"{one['bytes_per_token'] / 2**20:>10.1f}   {text_line(one['all_texts'])}"
        )


def _of_text(content: JsonObject, name: str) -> Iterator[str]:
    yield ""
    yield text_title(name, content["texts"][name])
    for one in content["recipes"]:
        yield f"  {one['name']:<52}   {text_line(one['texts'][name])}"
