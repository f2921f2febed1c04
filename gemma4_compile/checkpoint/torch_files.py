"""Weights in the files of torch.save, which are pickles: not read here, but for one command.

torch reads their tensors alone with `weights_only`. That takes torch, and the memory of a shard, so
it is a command of its own and no part of a compilation.
"""

from __future__ import annotations

_COMMAND = (
    'python -c "import glob, json, torch, safetensors.torch as s; w = {{}}; [(t := torch.load(f, '
    "map_location='cpu', weights_only=True, mmap=open(f, 'rb').read(2) == b'PK'), "
    "o := f.replace('{old}', '{new}')"
    ".replace('.bin', '.safetensors'), s.save_file({{k: v.clone() for k, v in t.items()}}, o), "
    "w.update(dict.fromkeys(t, o))) for f in sorted(glob.glob('{old}*.bin'))]; "
    "len({{*w.values()}}) > 1 and json.dump({{'weight_map': w}}, "
    "open('{new}.safetensors.index.json', 'w'))\""
)


def conversion(stem: str) -> str:
    """What to do about files of torch.save, as a hint: those of a model, or of an adapter.

    Parameters
    ----------
    stem : what their names begin with: `pytorch_model` or `adapter_model`
    """
    new = "model" if stem == "pytorch_model" else stem
    command = _COMMAND.format(old=stem, new=new)
    return f"in that folder, with torch and safetensors installed, run `{command}`"
