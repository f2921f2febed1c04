"""What stands in the place of a file, by how it begins."""

from __future__ import annotations

from gemma4_compile.errors import CheckpointError

BEGIN_BYTES = 64  # of a file, that say what it is
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
    (
        b"# xet version ",
        "is a pointer of Xet, not the file itself",
        "run `git xet install` once and `git lfs pull` in the clone, or download it with "
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

_UNPACK = "unpack it: the folder needs the file itself"
_SAVE = "load it with transformers, if you trust it, and save it with save_pretrained"
# Bytes that the length of a header may have, too: looked for where there is no such header.
_OTHER_FORMATS = (
    (b"\x1f\x8b", "is compressed by gzip", _UNPACK),
    (b"\x28\xb5\x2f\xfd", "is compressed by zstd", _UNPACK),
    (b"\xfd7zXZ", "is compressed by xz", _UNPACK),
    (b"7z\xbc\xaf\x27\x1c", "is an archive of 7-Zip", _UNPACK),
    *((bytes((0x80, i)), "is a pickle; only safetensors are read", _SAVE) for i in range(2, 6)),
    (b"\x93NUMPY", "is a file of NumPy; only safetensors are read", _SAVE),
    (b"\x89HDF", "is an HDF5 file, as Keras makes them; only safetensors are read", _SAVE),
    (
        bytes(BEGIN_BYTES),
        "begins with zeros",
        "download the file to its end: some programs take its space first, and fill it later",
    ),
)


def check_is_no_other_format(name: str, begin: bytes) -> None:
    """Refuse a file without a safetensors header by the format that it begins as.

    Raises
    ------
    CheckpointError
        If that is known; otherwise nothing is said.
    """
    for start, what, hint in _OTHER_FORMATS:
        if begin.startswith(start):
            raise CheckpointError(f"`{name}` {what}", hint=hint)


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
