"""Naga, Firefox's compiler of shaders, on folders of WGSL: a process of its own for a test.

usage: python -m tests.web.naga FOLDER. Prints a JSON object: what is wrong by file, and the device.

A device of wgpu-native is made with what the texts enable and what the WebLLM client asks for, and
each kernel of a text becomes a pipeline on it. Vulkan's driver is that of the environment.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import wgpu

ENABLED = {"enable f16;": "shader-f16", "enable subgroups;": "subgroup"}
"""wgpu-native's names of the features."""
LIMITS = {
    "max-storage-buffers-per-shader-stage": 10,
    "max-compute-workgroup-storage-size": 32 * 1024,
    "max-compute-invocations-per-workgroup": 256,
}
# Naga has the operations without the directive, and refuses the directive
# (https://github.com/gfx-rs/wgpu/issues/5555), so Firefox offers no subgroups.
UNKNOWN_DIRECTIVE = "enable subgroups;"
_KERNEL = re.compile(r"@compute\b[^{;]*?\bfn\s+(\w+)")


def errors(device: wgpu.GPUDevice, text: str) -> str:
    """What is wrong with a text; nothing for one whose kernels become pipelines."""
    names = _KERNEL.findall(text)
    if not names:
        return "it has no kernel"
    try:
        shader = device.create_shader_module(code=text)
        for name in names:
            kernel = {"module": shader, "entry_point": name}
            device.create_compute_pipeline(layout="auto", compute=kernel)
    except (wgpu.GPUError, RuntimeError) as error:
        return str(error)
    return ""


def main(folder: Path) -> None:
    """Try every text of a folder, as it is and without the directive that Naga does not know."""
    texts = {path.name: path.read_text() for path in sorted(folder.glob("*.wgsl"))}
    features = {name for line, name in ENABLED.items() if any(line in t for t in texts.values())}
    adapter = next(
        one for one in wgpu.gpu.enumerate_adapters_sync() if one.info["backend_type"] == "Vulkan"
    )
    device = adapter.request_device_sync(required_features=sorted(features), required_limits=LIMITS)
    wrong, refused = {}, []
    for name, text in texts.items():
        if UNKNOWN_DIRECTIVE in text and errors(device, text):
            refused.append(name)
        found = errors(device, text.replace(UNKNOWN_DIRECTIVE, ""))
        if found:
            wrong[name] = found
    kernels = sum(len(_KERNEL.findall(text)) for text in texts.values())
    told = {"device": adapter.info["device"], "tried": kernels}
    print(json.dumps({**told, "wrong": wrong, "refused": refused}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
