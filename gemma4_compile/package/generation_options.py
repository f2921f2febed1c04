"""Options of `generation_config.json` that a package does not have, and that would change replies.

transformers takes every option of that file whenever it generates. What a package has of them is
read where its sampling and its stops are made.
"""

from __future__ import annotations

from collections.abc import Mapping

from gemma4_compile.options.process import warn

READ = frozenset(
    (
        *("temperature", "top_k", "top_p", "repetition_penalty", "do_sample"),
        *("eos_token_id", "suppress_tokens"),
    )
)
_SAMPLING = ("min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff")
LEFT_OUT: Mapping[str, tuple[object, ...]] = {
    **dict.fromkeys(("top_h", "watermarking_config", "dola_layers"), ()),
    "penalty_alpha": (0,),
    **dict.fromkeys(
        ("min_p", "epsilon_cutoff", "eta_cutoff", "min_length", "min_new_tokens"), (0,)
    ),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), (0,)),
    **dict.fromkeys(("typical_p", "encoder_repetition_penalty", "guidance_scale"), (1,)),
    **dict.fromkeys(("num_beams", "num_beam_groups"), (1,)),
    **dict.fromkeys(("bad_words_ids", "begin_suppress_tokens", "stop_strings"), ([], "")),
    **dict.fromkeys(("sequence_bias", "constraints", "force_words_ids"), ([], {})),
    "exponential_decay_length_penalty": (),
    "token_healing": (False,),
}
"""By name, the values besides null that change nothing."""


def left_out(generation_config: Mapping[str, object]) -> list[str]:
    """Names of the options that would change replies, and that a package does not have."""
    names = [name for name in LEFT_OUT if generation_config.get(name) is not None]
    if generation_config.get("do_sample") is not True:  # transformers samples where it is true
        names = [name for name in names if name not in _SAMPLING]
    return [name for name in names if generation_config[name] not in LEFT_OUT[name]]


def warn_of_unsaid_sampling(
    generation_config: Mapping[str, object],
    defaults: Mapping[str, float],
    *,
    is_there: bool = True,
) -> None:
    """Say that a package samples where the file does not say whether to, or is not there.

    transformers writes the most probable token there; other programs that serve models sample, as
    all of Google's files say with `do_sample: true`.

    Parameters
    ----------
    defaults : what the package samples with, by name
    is_there : whether the checkpoint has the file
    """
    given = generation_config.get("do_sample")
    if isinstance(given, bool) or defaults["temperature"] == 0:
        return
    found, where = "generation_config.json is missing", "a generation_config.json"
    if is_there:
        said = "is missing"
        if given is not None:
            said = f"is {str(given)[:40]!r}, expected true or false"
        found, where = f"generation_config.json: `do_sample` {said}", "it"
    warn(
        f"{found}: transformers takes the most probable token there, and the package samples "
        f"(temperature {defaults['temperature']:g})",
        f'write `"do_sample": true` or `false` into {where}; --greedy, or `temperature: 0` in a '
        "request, takes the most probable token",
    )


def warn_of_left_out(generation_config: Mapping[str, object]) -> None:
    """Name what transformers does with these options and a package does not."""
    names = left_out(generation_config)
    if not names:
        return
    shown = ", ".join(f"`{name}`" for name in names)
    are, them = ("are", "them") if len(names) > 1 else ("is", "it")
    hint = f"remove {them} from generation_config.json, where the model does without"
    if "min_p" in names:
        hint = f"`min_p` may be a field of requests; otherwise {hint}"
    elif "stop_strings" in names:
        hint = f"give `stop` in requests; otherwise {hint}"
    warn(
        f"generation_config.json: {shown} {are} not part of a package, and left out: replies may "
        "be others than transformers'",
        hint,
    )
