"""The modules that need torch and transformers, which are an extra: loaded when they are used."""

from __future__ import annotations

from importlib.util import find_spec
from types import ModuleType

from gemma4_compile.errors import UsageError
from gemma4_compile.options.verify import CPU, CUDA

_INSTALL_HINT = "pip install 'gemma4-compile[verify]'"


def check_installed() -> None:
    """Raise UsageError if torch or transformers is not installed, without loading them."""
    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"verifying needs torch and transformers: {' and '.join(missing)} not found",
            hint=_INSTALL_HINT,
        )


def load_transformers() -> ModuleType:
    """The module `transformer`."""
    try:
        from gemma4_compile.verification import transformer
    except ImportError as error:
        raise _missing(error) from error
    return transformer


def load_forms() -> ModuleType:
    """The module `form_measures`."""
    try:
        from gemma4_compile.verification import form_measures
    except ImportError as error:
        raise _missing(error) from error
    return form_measures


def load_encoder() -> ModuleType:
    """The module `encoder_reference`."""
    try:
        from gemma4_compile.verification import encoder_reference
    except ImportError as error:
        raise _missing(error) from error
    return encoder_reference


def _missing(error: ImportError) -> UsageError:
    return UsageError(f"verifying needs torch and transformers: {error}", hint=_INSTALL_HINT)


def choose_device(asked: str) -> str:
    """Torch's name of the device: `auto` is a GPU of NVIDIA where torch finds one.

    Raises
    ------
    UsageError
        If a GPU is asked for, and torch finds none.
    """
    has_cuda: bool = load_transformers().has_cuda()
    if asked == CUDA and not has_cuda:
        raise UsageError(
            "--device cuda: torch finds no such device",
            hint="install torch's build for CUDA, or leave --device out",
        )
    return CUDA if has_cuda and asked != CPU else CPU
