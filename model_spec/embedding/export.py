"""The exported functions of an encoder."""

from __future__ import annotations

from tvm.relax.frontend import nn

from gemma4_compile import abi
from gemma4_compile.errors import ConfigError
from gemma4_compile.model_spec.component import VAR_BOUNDS_ATTR, Exported, ExportOptions
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.config.variants import NO_TOKEN
from gemma4_compile.model_spec.embedding.encoder import TextEncoder
from gemma4_compile.model_spec.embedding.padded import add_prefill
from gemma4_compile.model_spec.matrices import Matrices
from gemma4_compile.operators.padded_texts import AROUND

_PACKED = {"param_mode": "packed", "effect_mode": "none"}


def export_embedding(config: Gemma4Config, matrices: Matrices, options: ExportOptions) -> Exported:
    """Build `embed_texts`, and `prefill` where the stock client calls it.

    A call of the first has up to `options.prefill_chunk` tokens, and as many texts.

    Raises
    ------
    ConfigError
        If the second is to put tokens around texts that the model does not have.
    """
    if options.pads_texts:
        _check_ends(config)
    encoder = TextEncoder(config, matrices, options.activation_dtype)
    spec: dict[str, dict[str, object]] = {
        abi.EMBED_TEXTS: {
            "ids": nn.spec.Tensor(["n"], "int32"),
            "spans": nn.spec.Tensor(["n", 2], "int32"),
            "ranges": nn.spec.Tensor(["texts", 2], "int32"),
            "$": _PACKED,
        }
    }
    most = options.prefill_chunk
    if options.pads_texts:
        most += AROUND  # the client's count is of the tokens between
    module, parameters = encoder.export_tvm(spec)
    bounds = {"n": most, "texts": most}
    module[abi.EMBED_TEXTS] = module[abi.EMBED_TEXTS].with_attr(VAR_BOUNDS_ATTR, bounds)
    if options.pads_texts:
        module = add_prefill(module, config, most)
    return Exported(module, tuple(name for name, _ in parameters))


def _check_ends(config: Gemma4Config) -> None:
    """Refuse a config without the tokens that stand around a text."""
    ends = {
        "bos_token_id": config.bos_token_id,
        "eos_token_id": next(iter(config.eos_token_id), NO_TOKEN),
    }
    for name, token in ends.items():
        if not 0 <= token < config.vocab_size:
            raise ConfigError(
                f"config key `{name}`: expected a token of the model, which stands around each "
                "text in browsers; found none",
                hint="set it to the one that the tokenizer puts there",
            )
