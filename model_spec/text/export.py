"""The functions of decoder and sampler that the client calls, as one IRModule."""

from __future__ import annotations

from tvm.relax.frontend import nn

from gemma4_compile import abi
from gemma4_compile.model_spec.component import (
    FEW_ROWS_ATTR,
    VAR_BOUNDS_ATTR,
    Exported,
    ExportOptions,
)
from gemma4_compile.model_spec.config.drafter import MAX_VERIFIED
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.matrices import Matrices
from gemma4_compile.model_spec.text.decoder import MAX_ROWS, Gemma4ForCausalLM
from gemma4_compile.model_spec.text.sampler import SamplerModule, SamplerOptions


def _mode(params: str) -> dict[str, str]:
    return {"param_mode": params, "effect_mode": "none"}


def _decoder_spec(
    config: Gemma4Config, *, joins: bool, joins_rows: bool
) -> dict[str, dict[str, object]]:
    """The functions and their arguments; of packages with a drafter, what holds its drafts.

    `joins` : with that which takes a token of each of several sequences; `joins_rows` : with that
    which takes some of each, too, as drafts, or a prompt's last rows beside others' tokens
    """
    hidden = config.hidden_size
    state = nn.spec.Object(object_type=nn.Object)
    one_token = nn.spec.Tensor([1, 1], "int32")
    tokens = nn.spec.Tensor([1, "n"], "int32")
    verify = {
        "embeddings": nn.spec.Tensor([1, "n", hidden], "float32"),
        "ids": tokens,
        "kv": state,
        "$": _mode("packed"),
    }
    return {
        **({} if config.drafter is None else {abi.VERIFY: verify}),
        **{
            name: {"ids": nn.spec.Tensor(["n"], "int32"), "kv": state, "$": _mode("packed")}
            for name in [abi.DECODE_ROWS] * joins + [abi.VERIFY_ROWS] * joins_rows
        },
        abi.EMBED: {"ids": nn.spec.Tensor(["n"], "int32"), "$": _mode("packed")},
        abi.PREFILL: {
            "embeddings": nn.spec.Tensor([1, "n", hidden], "float32"),
            "ids": tokens,
            "modality": tokens,
            "kv": state,
            "$": _mode("packed"),
        },
        abi.DECODE: {"ids": one_token, "kv": state, "$": _mode("packed")},
        abi.CREATE_KV_CACHE: {
            "max_sequences": int,
            "total_length": int,
            "prefill_chunk": int,
            "page_size": int,
            "sliding": int,
            "$": _mode("none"),
        },
    }


def _sampler_spec(vocab: int, *, with_rows: bool) -> dict[str, dict[str, object]]:
    def floats(*shape: int | str) -> nn.spec.Tensor:
        return nn.spec.Tensor(list(shape), "float32")

    def ints(*shape: int | str) -> nn.spec.Tensor:
        return nn.spec.Tensor(list(shape), "int32")

    draw_rows = {
        "logits": floats(1, "n", vocab),
        "temperature": floats(1),
        "uniform": floats("n"),
        "top_p": floats(1),
        "$": _mode("none"),
    }
    return {
        **({abi.DRAW_ROWS: draw_rows} if with_rows else {}),
        abi.SOFTMAX: {"logits": floats(1, 1, vocab), "temperature": floats(1), "$": _mode("none")},
        abi.ARGSORT: {"probs": floats(1, vocab), "$": _mode("none")},
        abi.SAMPLE_TOP_P: {
            "probs": floats(1, vocab),
            "indices": floats(1, vocab),
            "uniform": floats(1),
            "sample_index": ints(1),
            "top_p": floats(1),
            "$": _mode("none"),
        },
        abi.LOGIT_BIAS: {
            "logits": floats(1, vocab),
            "pos2seq": ints("n"),
            "token_ids": ints("n"),
            "bias": floats("n"),
            "$": _mode("none"),
        },
        abi.PENALTY: {
            "logits": floats(1, vocab),
            "seq_ids": ints("m"),
            "pos2seq": ints("n"),
            "token_ids": ints("n"),
            "counts": ints("n"),
            "penalties": floats("m", 3),
            "$": _mode("none"),
        },
        abi.BITMASK: {
            "logits": floats(1, vocab),
            "seq_ids": ints(1),
            "bitmask": ints(1, -(-vocab // 32)),
            "$": _mode("none"),
        },
    }


def export_text(config: Gemma4Config, matrices: Matrices, options: ExportOptions) -> Exported:
    """Build the functions of the decoder and of the sampler."""
    return export_decoder(Gemma4ForCausalLM(config, matrices, options))


def export_decoder(decoder: Gemma4ForCausalLM) -> Exported:
    """Build the functions of a decoder and of the sampler."""
    config, options = decoder.config, decoder.options
    joins = options.joins_sequences and decoder.layout.joins
    has_drafter = config.drafter is not None
    joins_rows = joins and options.joins_rows
    spec = _decoder_spec(config, joins=joins, joins_rows=joins_rows)
    module, parameters = decoder.export_tvm(spec)
    drawn = SamplerOptions(options.softmax_blocks, options.draws_by_masses)
    sampler = SamplerModule(config.vocab_size, drawn)
    draws_rows = has_drafter or joins
    helpers, _ = sampler.export_tvm(_sampler_spec(config.vocab_size, with_rows=draws_rows))
    module.update(helpers)
    for name in (abi.EMBED, abi.PREFILL):
        module[name] = module[name].with_attr(VAR_BOUNDS_ATTR, {"n": options.prefill_chunk})
    for name in [abi.DECODE_ROWS] * joins + [abi.VERIFY_ROWS] * joins_rows:
        attrs = {VAR_BOUNDS_ATTR: {"n": MAX_ROWS}, FEW_ROWS_ATTR: MAX_ROWS}
        module[name] = module[name].with_attrs(attrs)
    if has_drafter:
        attrs = {VAR_BOUNDS_ATTR: {"n": MAX_VERIFIED}, FEW_ROWS_ATTR: MAX_VERIFIED}
        module[abi.VERIFY] = module[abi.VERIFY].with_attrs(attrs)
    if draws_rows:
        bounds = {VAR_BOUNDS_ATTR: {"n": MAX_ROWS}}
        module[abi.DRAW_ROWS] = module[abi.DRAW_ROWS].with_attrs(bounds)
    return Exported(module, tuple(name for name, _ in parameters))
