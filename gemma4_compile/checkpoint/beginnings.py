"""What stands in the place of a file, by how it begins."""

from __future__ import annotations

from gemma4_compile.errors import CheckpointError

_WEB_PAGE = (
    "is a web page, not the file itself",
    "download the file (its address has `resolve` in it, where the page's has `blob`)",
)
_ANSWER = (
    "is an answer of a server that refused the file, not the file itself",
    "download it with `hf download`, after `hf auth login` where its licence was to be accepted",
)
_BEGINNINGS = (
    (
        b"version https://git-lfs.github.com/spec/",
        "is a pointer of Git LFS, not the file itself",
        "run `git lfs install` once and `git lfs pull` in the clone, or download it with "
        "`hf download`",
    ),
    (b"<!doctype html", *_WEB_PAGE),
    (b"<html", *_WEB_PAGE),
    (b"<?xml", *_ANSWER),
    (b"entry not found", *_ANSWER),
    (b"repository not found", *_ANSWER),
    (b"access to model ", *_ANSWER),
    (b"invalid username or password", *_ANSWER),
    (b'{"error":', *_ANSWER),
    (
        b"gguf",
        "holds GGUF, for llama.cpp",
        "give the file itself, by a name that ends in .gguf, in a folder of its own",
    ),
    (
        b"pk\x03\x04",
        "is a ZIP file, as torch.save makes them; only safetensors are read",
        "load it with transformers, if you trust it, and save it with save_pretrained",
    ),
)

BEGIN_BYTES = 64  # of a file, that say what it is


def check_is_file_itself(name: str, begin: bytes) -> None:
    """Refuse what stands in the place of a file, by how it begins.

    Raises
    ------
    CheckpointError
        For pointers of Git LFS, web pages, a server's refusals and other formats.
    """
    lowered = begin[:BEGIN_BYTES].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    for text, what, hint in _BEGINNINGS:
        if lowered.startswith(text):
            raise CheckpointError(f"`{name}` {what}", hint=hint)
