"""A process that drives the launcher itself, step by step; `tests.metal.fake` starts it."""

from __future__ import annotations

import array
import ctypes
import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

Asked = Mapping[str, Any]

VALUES = 8  # floats of a buffer
COUNTS = (
    *("launches", "command buffers", "barriers", "waits", "staged uploads"),
    *("kept pipelines", "new pipelines"),
)
ALIVE = (
    *("MTLCommandBuffer", "MTLComputeCommandEncoder", "MTLBlitCommandEncoder", "MTLLibrary"),
    *("MTLFunction", "MTLComputePipelineState", "MTLCompileOptions", "NSURL", "NSArray"),
    "MTLBinaryArchiveDescriptor",
    *("MTLComputePipelineDescriptor", "NSString", "NSError"),
)


_kept: list[object] = []  # what the fake calls


def load(asked: Asked) -> ctypes.CDLL:
    """The fake, for all of the process."""
    library = ctypes.CDLL(asked["fake"], ctypes.RTLD_GLOBAL)
    kernels = {source.encode(): path.encode() for source, path in asked["kernels"].items()}
    find = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(
        lambda source: ctypes.cast(ctypes.c_char_p(kernels.get(source)), ctypes.c_void_p).value
    )
    _kept.append((find, kernels))
    library.fake_set_kernels(find)
    library.fake_set_run_at_once(asked.get("at once", False))
    if "macos" in asked:
        library.fake_set_macos(asked["macos"], asked["m5"])
    return library


class Launcher:
    """The launcher, with kernels of two buffers or three."""

    def __init__(self, asked: Asked) -> None:
        """Open the device."""
        self.calls = calls = ctypes.CDLL(asked["launcher"])
        self.deferred = not asked.get("at once", False)
        self.gathers = asked.get("launches", 64) > 1
        self._is_right = "mistake" not in asked
        self._before: dict[str, int] = {}
        for name in ("launcher_new", "launcher_allocate", "kernel_new"):
            getattr(calls, name).restype = ctypes.c_void_p
        for name in ("launcher_open", "launcher_launch", "launcher_error"):
            getattr(calls, name).restype = ctypes.c_char_p
        self._texts: list[bytes] = []  # which the launcher does not copy
        calls.launcher_count.restype = ctypes.c_int64
        calls.plant(asked.get("mistake", 0))
        self._self = ctypes.c_void_p(calls.launcher_new())
        self.error(calls.launcher_open(self._self, ctypes.c_size_t(asked.get("launches", 64))))
        if "archive" in asked:
            calls.launcher_open_archive(self._self, asked["archive"].encode())
        self._kernels = {
            name.removesuffix("_kernel"): self._kernel(name, source)
            for name, source in {**asked["names"], "unknown_kernel": "none"}.items()
        }

    def _kernel(self, name: str, source: str) -> ctypes.c_void_p:
        self._texts += [name.encode(), source.encode()]
        count = ctypes.c_size_t(source.count("[[ buffer(") or 2)
        return ctypes.c_void_p(self.calls.kernel_new(*self._texts[-2:], count))

    @staticmethod
    def error(text: bytes) -> None:
        if text:
            raise RuntimeError(text.decode())

    def buffer(self, value: float | None = None) -> ctypes.c_void_p:
        made = self.calls.launcher_allocate(self._self, ctypes.c_size_t(4 * VALUES))
        self.error(self.calls.launcher_error(self._self))
        found = ctypes.c_void_p(made)
        if value is not None:
            self.write(found, value)
        return found

    def write(self, buffer: ctypes.c_void_p, value: float) -> None:
        values = array.array("f", [value] * VALUES).tobytes()
        size = ctypes.c_size_t(len(values))
        self.calls.launcher_upload(self._self, values, buffer, ctypes.c_size_t(0), size)

    def read(self, buffer: ctypes.c_void_p) -> float:
        """The one value that a buffer holds in all places."""
        values = ctypes.create_string_buffer(4 * VALUES)
        size = ctypes.c_size_t(len(values))
        self.calls.launcher_read(self._self, buffer, ctypes.c_size_t(0), values, size)
        self.error(self.calls.launcher_error(self._self))
        found = set(array.array("f", values.raw))
        assert len(found) == 1, found
        return found.pop()

    def copy(
        self,
        source: ctypes.c_void_p,
        target: ctypes.c_void_p,
        size: int = 4 * VALUES,
        places: tuple[int, int] = (0, 0),
    ) -> None:
        begin, to = map(ctypes.c_size_t, places)
        self.calls.launcher_copy(self._self, source, begin, target, to, ctypes.c_size_t(size))

    def write_bytes(self, buffer: ctypes.c_void_p, place: int, values: bytes) -> None:
        size = ctypes.c_size_t(len(values))
        self.calls.launcher_upload(self._self, values, buffer, ctypes.c_size_t(place), size)

    def read_bytes(self, buffer: ctypes.c_void_p, size: int) -> bytes:
        values = ctypes.create_string_buffer(size)
        zero = ctypes.c_size_t(0)
        self.calls.launcher_read(self._self, buffer, zero, values, ctypes.c_size_t(size))
        return values.raw

    def launch(self, name: str, *buffers: ctypes.c_void_p, threads: int = VALUES) -> None:
        given = (ctypes.c_void_p * len(buffers))(*(buffer.value for buffer in buffers))
        size = ctypes.c_size_t(1), ctypes.c_size_t(threads)
        self.error(self.calls.launcher_launch(self._self, self._kernels[name], given, *size))

    def free(self, *buffers: ctypes.c_void_p) -> None:
        for buffer in buffers:
            self.calls.launcher_free(self._self, buffer)

    def save(self, path: str) -> bool:
        self.calls.launcher_save_archive.restype = ctypes.c_bool
        return bool(self.calls.launcher_save_archive(self._self, path.encode()))

    def submit(self) -> None:
        self.calls.launcher_submit(self._self)

    def wait(self) -> None:
        self.calls.launcher_wait(self._self)
        self.error(self.calls.launcher_error(self._self))

    def counts(self) -> dict[str, int]:
        """What was done since `begin`."""
        found = [self.calls.launcher_count(self._self, which) for which in range(len(COUNTS))]
        now = dict(zip(COUNTS, found, strict=True))
        return {name: now[name] - self._before.get(name, 0) for name in COUNTS}

    def expect(self, name: str, count: int) -> None:
        """Check one of them; with a mistake, what it leads to is of interest."""
        assert not self._is_right or self.counts()[name] == count, self.counts()

    def begin(self) -> None:
        """Count anew."""
        self._before = {}
        self._before = self.counts()

    def end(self) -> None:
        self.wait()
        for kernel in self._kernels.values():
            self.calls.kernel_free(self._self, kernel)


def depend(launcher: Launcher) -> None:
    """Launches that read what those before them write, twice, with an upload between."""
    a, b, c = launcher.buffer(1), launcher.buffer(), launcher.buffer()
    for value in (1.0, 5.0, 7.0):
        launcher.write(a, value)
        launcher.launch("add_one", a, b)
        launcher.launch("add_one", b, c)
        launcher.launch("add", b, c, a)
        launcher.launch("add_one", a, b)
        assert launcher.read(b) == 2 * value + 4
        assert launcher.read(c) == value + 2
    if launcher.gathers:
        launcher.expect("barriers", 9)  # three of each round
    launcher.free(a, b, c)


def upload(launcher: Launcher) -> None:
    """Uploads to what launches have yet to read, more of them than there are stages."""
    a, results = launcher.buffer(0), [launcher.buffer() for _ in range(200)]
    for number, result in enumerate(results):
        launcher.write(a, number)
        launcher.launch("add_one", a, result)
    if launcher.deferred:  # all but the first, before which nothing is launched
        launcher.expect("staged uploads", len(results) - 1)
    found = [launcher.read(result) for result in results]
    assert found == [number + 1 for number in range(len(results))], found
    launcher.free(a, *results)


def overlap(launcher: Launcher) -> None:
    """A read that waits for its own command buffer while a later one is not done."""
    a, b, c = launcher.buffer(1), launcher.buffer(), launcher.buffer()
    launcher.launch("add_one", a, b)
    launcher.submit()
    launcher.launch("add_one", b, c)
    launcher.submit()
    launcher.write(a, 4)
    launcher.launch("add_one", a, c)
    assert launcher.read(b) == 2
    if launcher.deferred:
        launcher.expect("waits", 1)
    launcher.copy(b, a)
    launcher.free(b)
    assert launcher.read(c) == 5
    assert launcher.read(a) == 2
    launcher.launch("add_one", a, c)
    launcher.write(a, 9)
    assert launcher.read(a) == 9
    d = launcher.buffer(0)
    launcher.copy(c, d)
    assert launcher.read(d) == 3
    launcher.free(a, c, d)


def beside(launcher: Launcher) -> None:
    """Launches that need nothing of one another, which no barrier stands between."""
    a, results = launcher.buffer(3), [launcher.buffer() for _ in range(6)]
    for result in results:
        launcher.launch("add_one", a, result)
    launcher.expect("barriers", 0)
    launcher.launch("add_one", results[0], a)  # to what all of them read
    launcher.expect("barriers", int(launcher.gathers))
    assert {launcher.read(result) for result in results} == {4.0}
    launcher.free(a, *results)


def overwrite(launcher: Launcher) -> None:
    """A launch that writes what one before it reads."""
    a, b, c = launcher.buffer(1), launcher.buffer(), launcher.buffer(6)
    for _ in range(2):
        launcher.launch("add_one", a, b)
        launcher.launch("add_one", c, a)
        launcher.expect("barriers", int(launcher.gathers))
        assert launcher.read(b) == 2
        launcher.write(a, 1)
        launcher.begin()
    launcher.free(a, b, c)


def odd(launcher: Launcher) -> None:
    """Bytes that are no whole words, which no blit copies, to and from what launches use."""
    a, b, c = launcher.buffer(1), launcher.buffer(), launcher.buffer(0)
    launcher.launch("add_one", a, b)
    launcher.write_bytes(a, 4, b"abc")
    launcher.launch("add_one", b, c)
    launcher.write_bytes(b, 1, b"defg")
    assert launcher.read(c) == 3
    launcher.launch("add_one", c, b)
    launcher.copy(a, c, 3, (4, 8))
    launcher.copy(c, a, 8, (6, 0))
    three = array.array("f", [3.0]).tobytes()
    assert launcher.read_bytes(c, 12) == three * 2 + b"abc" + three[3:]
    assert launcher.read_bytes(a, 8) == three[2:] + b"abc" + three[3:] + three[:2]
    assert launcher.read(b) == 4
    launcher.free(a, b, c)


STEPS: Mapping[str, Callable[[Launcher], None]] = {
    "depend": depend,
    "upload": upload,
    "overlap": overlap,
    "beside": beside,
    "overwrite": overwrite,
    "odd": odd,
}


def fail(launcher: Launcher, fake: ctypes.CDLL) -> dict[str, str]:
    """Errors, each of which the launcher survives."""
    found = {}
    a, b = launcher.buffer(1), launcher.buffer()

    def leave() -> None:
        launcher.launch("add_one", a, b)
        launcher.launch("leave", a, b)
        launcher.wait()

    def too_much() -> None:
        fake.fake_set_room(ctypes.c_size_t(8))
        launcher.buffer()

    attempts: Mapping[str, Callable[[], object]] = {
        "gpu": leave,
        "threads": partial(launcher.launch, "add_one", a, b, threads=2048),
        "buffer": partial(launcher.launch, "add_one", a, ctypes.c_void_p()),
        "source": partial(launcher.launch, "unknown", a, b),
        "tensors": partial(launcher.launch, "tensor", a, b),
        "room": too_much,
    }
    for name, attempt in attempts.items():
        try:
            attempt()
        except RuntimeError as error:
            found[name] = str(error)
    launcher.write(a, 2)
    launcher.launch("add_one", a, b)
    assert launcher.read(b) == 3
    launcher.free(a, b)
    return found


def main() -> None:
    """Do what is asked; what is left of Metal's objects at the end is part of the answer."""
    asked = json.load(sys.stdin)
    fake = load(asked)
    launcher = Launcher(asked)
    answer: dict[str, Any] = {}
    for name in asked["steps"]:
        launcher.begin()
        STEPS[name](launcher)
        launcher.wait()
    if "archive" in asked:
        names = ("kept pipelines", "new pipelines")
        counted = {name: launcher.counts()[name] for name in names}
        answer["archive"] = {**counted, "saved": launcher.save(asked["save"])}
    if asked.get("fail"):
        answer["errors"] = fail(launcher, fake)
    launcher.end()
    answer["alive"] = [name for name in ALIVE if fake.fake_alive(name.encode())]
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
