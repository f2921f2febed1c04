"""TargetSpec: what a place to run on allows, as data; the one source of limits for kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import tvm

from gemma4_compile.device_kinds import DeviceType
from gemma4_compile.targets.tuning import Tuning

HOST = "llvm"  # TVM's code generator for CPUs
HOST_OPTIONS: Mapping[str, str | int] = {"kind": HOST}
"""Of host code for every target; tests of small models ask LLVM for less effort."""
UNLIMITED = 2**31 - 1
"""Means "no limit" in the fields that are plain counts."""
FLOAT, INT8 = "float", "int8"  # float: of the recipe's dtype, float16 or float32
NATIVE, WORDS = "native", "words"
"""Float16 weights: read and computed with as such, or read as 32-bit words and made float32."""
PACKED_PRODUCTS = "packed_4x8_integer_dot_product"
"""WGSL's language feature with `dot4I8Packed`: products of int8, four to an instruction."""
ACTIVATIONS = (FLOAT, INT8)
"""Vectors of matmuls: in the recipe's float type, or quantised to int8 by groups."""


@dataclass(frozen=True)
class TargetSpec:
    """One target under one set of limits.

    Attributes
    ----------
    name : name on the command line
    limits : name of the set of limits, as ``--limits`` takes it
    device_type : where the tensors of the model live
    code_generator : TVM's name of what writes the kernels' code
    library_suffix : suffix of the model library, with its dot
    max_threads_per_block : threads in one thread block
    max_shared_memory_bytes : shared memory of one thread block
    max_storage_buffers : buffers that one kernel binds
    max_binding_bytes : bytes of one bound buffer; None means no limit
    max_grid_dim : blocks along one axis of the grid
    max_grid_x : blocks along x, where there may be more; 0 for `max_grid_dim`
    features : optional device features that kernels may use (``subgroups``), by WebGPU's names, or
        `device_kinds.TENSOR_OPERATIONS`.
        ``shader-f16`` is not among them: the recipe decides whether a library needs it.
    simd_width : neighbouring threads that exchange values without shared memory, or 0 where their
        number is not known
    joins_sums : kernels make several sums over those threads in one loop
    adds_atomically : threads may add to the same memory, the block's or an argument, at a time
    tensor_cores : whether warps multiply matrices of float16, and of signed bytes
    warpgroups : whether warpgroups multiply matrices of float16
    has_older_images : the library is for GPUs that lack them, too: the host asks before a launch
    programmatic_launch : kernels say when they need what the one before them made, so that a
        graph may begin them early on GPUs that can
    asked_shared_memory_bytes : of a thread block whose launch asks for it, beside the above
    simdgroup_matrices : whether simdgroups multiply matrices of float16 by Metal's functions
    tensor_operations : whether those of a threadgroup multiply its tiles by Metal 4's
    architecture : oldest generation of the device that kernels are compiled for, or "" where the
        device's own driver compiles them from source
    processor : the code generator's name for the CPU that runs host code, or "" for its plainest
    host_triple : LLVM triple of the host code, or "" for the machine that compiles
    host_vector_bits : width of the host's vectors, or 0 where the code generator knows it
    tuning : sizes of the kernels
    activations : one of ACTIVATIONS
    activation_forms : those that there are kernels for
    attributes : what else TVM's code generator asks of a target, by its names
    source_suffix : ending of a kernel's source file, "" where there is none
    float16_feature : the optional device feature that float16 needs, "" where it is none
    float16 : NATIVE, or WORDS where kernels must not need that feature
    is_static : the library is linked into a program and registers itself: nothing loads it by name
    gathers_launches : the client submits launches together, when somebody reads a result
    pads_pictures : the client gives every picture as many rows, whatever its grid
    joins_sequences : a forward may be of a token of each of several sequences, whose keys and
        values kernels find in memory of all of them together, by address
    slots_apart : there kernels take no addresses: each sequence's keys and values are buffers of
        their own, and a launch of attention is of one sequence
    int8_feature : the feature of the kernels' language that products of int8 need, "" for none
    is_by_machine : libraries made on machines of another kind are others
    compilers : packages that compile kernels, if they are installed
    known_answers : the library carries inputs and results of some kernels, for a test on the device
        before it is trusted
    """

    name: str
    limits: str
    device_type: DeviceType
    code_generator: str
    library_suffix: str
    max_threads_per_block: int
    max_shared_memory_bytes: int
    max_storage_buffers: int
    max_binding_bytes: int | None
    max_grid_dim: int
    max_grid_x: int = 0
    features: tuple[str, ...] = ()
    simd_width: int = 0
    joins_sums: bool = False
    adds_atomically: bool = False
    tensor_cores: bool = False
    warpgroups: bool = False
    has_older_images: bool = False
    programmatic_launch: bool = False
    asked_shared_memory_bytes: int = 0
    simdgroup_matrices: bool = False
    tensor_operations: bool = False
    architecture: str = ""
    processor: str = ""
    host_triple: str = ""
    host_vector_bits: int = 0
    tuning: Tuning = field(default_factory=Tuning)
    activations: str = FLOAT
    activation_forms: tuple[str, ...] = ACTIVATIONS
    attributes: tuple[tuple[str, str | int], ...] = ()
    source_suffix: str = ""
    float16_feature: str = ""
    float16: str = NATIVE
    is_static: bool = False
    gathers_launches: bool = False
    pads_pictures: bool = False
    joins_sequences: bool = False
    slots_apart: bool = False
    int8_feature: str = ""
    is_by_machine: bool = False
    compilers: tuple[str, ...] = ()
    known_answers: bool = False

    @property
    def device(self) -> str:
        """DLPack's name of the device, which a runtime opens."""
        return self.device_type.name.lower()

    @property
    def language_features(self) -> tuple[str, ...]:
        """Features of the kernels' language that they use."""
        return (self.int8_feature,) if self.int8_feature and self.activations == INT8 else ()

    @property
    def block_limits(self) -> dict[str, int]:
        """What a device must offer a thread block, by the names of provenance; of CPUs nothing."""
        names = ("max_threads_per_block", "max_shared_memory_bytes", "max_storage_buffers")
        values = {name: getattr(self, name) for name in names} if self.is_gpu else {}
        return {name: value for name, value in values.items() if value != UNLIMITED}

    @property
    def is_gpu(self) -> bool:
        """Return whether kernels run in thread blocks on a device of their own."""
        return not self.device_type.is_host

    def tvm_target(self) -> tvm.target.Target:
        """Return the TVM target: the code generator with this spec's limits, and its host."""
        host: dict[str, str | int] = dict(HOST_OPTIONS)
        if self.host_triple:
            host["mtriple"] = self.host_triple
        if self.host_vector_bits:
            host["vector-width"] = self.host_vector_bits
        if self.processor:
            host["mcpu"] = self.processor
        if not self.is_gpu:
            return tvm.target.Target(host)
        device: dict[str, str | int] = {
            "kind": self.code_generator,
            "max_num_threads": self.max_threads_per_block,
            "max_shared_memory_per_block": self.max_shared_memory_bytes,
            **dict(self.attributes),
        }
        if self.simd_width:
            device["thread_warp_size"] = self.simd_width
        if self.architecture:
            device["arch"] = self.architecture
        return tvm.target.Target(device, host=host)
