"""Kinds of checkpoints by their `config.json`, and those that are refused."""

from __future__ import annotations

from collections.abc import Mapping

from gemma4_compile.errors import ConfigError, printable
from gemma4_compile.model_spec.config.fields import ConfigFields
from gemma4_compile.model_spec.config.keys import ONLY_VALUES

# The multimodal model types and those of their text decoders.
TEXT_TYPES: Mapping[str, str] = {
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "embedding_gemma2": "embedding_gemma2_text",
    "gemma3n": "gemma3n_text",
}
ENCODERS = ("embedding_gemma2_text",)
"""Of those, the ones that make embeddings of texts and no replies."""
GEMMA3N_TEXT = TEXT_TYPES["gemma3n"]
_DRAFTER_TYPES = ("gemma4_assistant", "gemma4_unified_assistant")

# The families that are taken for this one.
_OTHER_GEMMAS = (
    *("gemma2", "gemma3", "t5gemma", "paligemma", "recurrent_gemma", "shieldgemma", "vaultgemma"),
    *("diffusion_gemma", "embedding_gemma"),
)
DEQUANTISE = (
    "save the model in bfloat16 first (dequantize() and save_pretrained() of transformers, "
    "`mlx_lm.convert --dequantize` of MLX), or give the checkpoint that it was quantised from"
)
WHOLE_HINT = (
    "give the checkpoint that it was quantised from; those of compressed-tensors (integers of 2, 4 "
    "and 8 bits, FP8, NVFP4, MXFP4), GPTQ, AWQ, bitsandbytes, FP8 and MLX are read"
)
QAT_HINT = (
    "give the checkpoint of the same size whose name ends in `-qat-q4_0-unquantized`, such as "
    "google/gemma-4-E2B-it-qat-q4_0-unquantized: four bits hold its weights exactly"
)
PHONE_METHOD = "gemma"
"""`quant_method` of Google's checkpoints for phones, which round activations, too."""
READ_METHODS = ("compressed-tensors", "gptq", "awq", "bitsandbytes", "fp8", "mlx", PHONE_METHOD)
"""`quant_method` of checkpoints whose weights are computed from what they hold."""
# Who quantised a checkpoint, by `quant_method`.
_METHODS: Mapping[object, str] = {
    "awq": "AWQ",
    "bitsandbytes": "bitsandbytes",
    "compressed-tensors": "compressed-tensors",
    "fp8": "FP8",
    "gptq": "GPTQ",
    "mxfp4": "MXFP4",
    "torchao": "torchao",
}
# Who writes these keys, and no `quant_method`.
_KEYS = (
    ({"load_in_4bit"}, "bitsandbytes"),
    ({"load_in_8bit"}, "bitsandbytes"),
    ({"quant_algo"}, "ModelOpt"),
    ({"group_size", "bits"}, "MLX"),
)


def unsupported_type(model_type: object) -> ConfigError:
    """The error for a model type that is not compiled, by its name if it is known."""
    if isinstance(model_type, str) and model_type in _DRAFTER_TYPES:
        return ConfigError(
            f"config key `model_type`: {model_type!r} is a drafter, which drafts tokens for "
            "another model",
            hint="compile that model, a `gemma4` or `gemma4_unified`, with this as its --drafter",
        )
    if isinstance(model_type, str) and model_type.startswith(_OTHER_GEMMAS):
        return ConfigError(
            f"config key `model_type`: {model_type!r} is another architecture than Gemma 4",
            hint="Gemma 4 is compiled, such as google/gemma-4-E2B-it, and the text of Gemma 3n; "
            "for other models take MLC-LLM",
        )
    return ConfigError(
        f"config key `model_type`: {model_type!r} is not a Gemma 4 text model",
        hint=f"supported: {', '.join(f'`{name}`' for name in TEXT_TYPES)} and their text models",
    )


def quantised_by(values: Mapping[object, object]) -> str | None:
    """The `quant_method` of a `quantization_config`, which MLX and older bitsandbytes lack."""
    method = values.get("quant_method")
    if method is None and {"group_size", "bits"} <= values.keys():
        return "mlx"
    if method is None and any(values.get(key) is True for key in ("load_in_4bit", "load_in_8bit")):
        return "bitsandbytes"
    return method if isinstance(method, str) else None


def refuse_quantised(fields: ConfigFields) -> None:
    """Raise ConfigError for a config of weights that are quantised in a way that is not read."""
    for key in ("quantization_config", "quantization"):  # MLX has the second, or both
        found = fields.get(key)
        if found is None or found == {}:
            continue
        who = ""
        if isinstance(found, Mapping):
            by = quantised_by(found)
            if by in READ_METHODS:
                continue
            method = found.get("quant_method")
            known = _METHODS.get(method) if isinstance(method, str) else None
            if method is None:  # of older files, and of MLX
                known = next((name for keys, name in _KEYS if keys <= found.keys()), None)
            name = known or (method and printable(str(method)[:40]))
            who = f" ({name})" if name else ""
        raise ConfigError(
            f"config key `{fields.key(key)}`: quantised checkpoints{who} are not supported yet",
            hint=DEQUANTISE,
        )


def quantization(top: ConfigFields, text: ConfigFields) -> Mapping[object, object]:
    """What a config says of how its weights were quantised; empty if it says nothing."""
    given = (fields.get("quantization_config") for fields in (top, text))
    found = next((one for one in given if one is not None), None)
    return found if isinstance(found, Mapping) else {}


def rounds_activations(values: Mapping[object, object]) -> bool:
    """Return whether inputs and outputs of linear layers are rounded, to steps of the files.

    `values` are a `quantization_config`.
    """
    groups = values.get("config_groups")
    if quantised_by(values) != "compressed-tensors" or not isinstance(groups, Mapping):
        return quantised_by(values) == PHONE_METHOD
    return any(_is_static(group) for group in groups.values() if isinstance(group, Mapping))


def _is_static(group: Mapping[object, object]) -> bool:
    """Return whether a group of compressed-tensors rounds activations by fixed scales."""
    inputs, outputs = group.get("input_activations"), group.get("output_activations")
    if outputs is not None:
        return True
    if not isinstance(inputs, Mapping):
        return False
    return inputs.get("type", "int") == "int" and inputs.get("dynamic") in (None, False)


_TANH_GELU = (*("gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_python_tanh", "gelu_accurate"),)
"""transformers' names of one function."""


def check_activation(fields: ConfigFields) -> None:
    """Raise ConfigError for another activation than GELU by tanh, under any of its names."""
    if fields.get("hidden_activation") not in _TANH_GELU:
        fields.fixed("hidden_activation", _TANH_GELU[0])


def refuse_variants(top: ConfigFields, text: ConfigFields) -> None:
    """Raise ConfigError for a key whose value means another architecture or another storage."""
    for fields in (top, text):
        refuse_quantised(fields)
        for name, value in ONLY_VALUES.items():
            fields.fixed(name, value)
    if text.get("use_bidirectional_attention") not in (None, "vision"):
        raise ConfigError(
            f"config key `{text.key('use_bidirectional_attention')}`: "
            f"expected null or 'vision', found {text.get('use_bidirectional_attention')!r}"
        )
    text.fixed("attention_bias", False)
    check_activation(text)


def ties_head(top: ConfigFields, text: ConfigFields) -> bool:
    """Return whether the head is the token embedding's: the top level's word, as in transformers.

    What a section below it says is not read there.
    """
    tied = top.boolean("tie_word_embeddings")
    text.get("tie_word_embeddings")
    return tied


def first_given(name: str, *places: ConfigFields) -> ConfigFields:
    """The first place where the key has a value, else the one that has its default."""
    given = [place for place in places if place.get(name) is not None]
    return next(iter((*given, *(place for place in places if place.has_default(name)))))


DEFAULT_DTYPE = "bfloat16"
"""The dtype of all released checkpoints."""
DTYPES = (DEFAULT_DTYPE, "float16", "float32")
_DTYPE_KEYS = ("dtype", "torch_dtype")
_SAME_DTYPES: Mapping[str, str] = {
    **{name: name for name in DTYPES},
    **{"half": "float16", "fp16": "float16", "bf16": "bfloat16"},
    **dict.fromkeys(("float", "fp32", "double", "float64"), "float32"),
}
"""Names of dtypes in torch and elsewhere; of 64 bits, half is computed."""
_OF_WEIGHTS = (None, "auto")


def names_dtype(values: Mapping[str, object]) -> bool:
    """Return whether a `config.json` says which dtype transformers loads in."""
    return any(values.get(name) not in _OF_WEIGHTS for name in _DTYPE_KEYS)


def _dtype(fields: ConfigFields, name: str) -> str:
    value = fields.get(name)
    if isinstance(value, Mapping):  # by section; the model's own is its empty name's
        value = value.get("", "float32")
    found = _SAME_DTYPES.get(value.removeprefix("torch.")) if isinstance(value, str) else None
    return fields.one_of(name, DTYPES) if found is None else found


def stored_dtype(top: ConfigFields, text: ConfigFields) -> str:
    """The dtype that transformers loads in: the top level's, a text_config's is not read there.

    DEFAULT_DTYPE where none is given: what the files hold is for who reads them.
    """
    for name in _DTYPE_KEYS:
        text.get(name), top.get(name)  # known keys
    for name in _DTYPE_KEYS:
        if top.get(name) not in _OF_WEIGHTS:
            return _dtype(top, name)
    return DEFAULT_DTYPE


NO_TOKEN = -1
"""The pad or first token of a config that names none of the vocabulary."""


def token_if_any(name: str, text: ConfigFields, top: ConfigFields, vocab_size: int) -> int:
    """The token of a key; NO_TOKEN where the vocabulary has it not, as no prompt can hold it."""
    given = first_given(name, text, top)
    value = given.require(name)
    if type(value) is int and not 0 <= value < vocab_size:
        return NO_TOKEN
    return given.token_id(name, vocab_size)


def check_pad(pad_token_id: int, *, is_read: bool) -> None:
    """Refuse media whose rows take the pad token's per-layer embedding, where there is none."""
    if is_read and pad_token_id == NO_TOKEN:
        raise ConfigError(
            "config key `pad_token_id`: outside of the vocabulary, and pictures and sounds take "
            "its row of the per-layer embedding",
            hint="set it to the pad token that the model was trained with, or leave `image` and "
            "`audio` out of --modalities",
        )
