"""A package on its device: model, sampler and drafter, and its sequences."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection
from functools import partial
from pathlib import Path

import tvm_ffi

from gemma4_compile.errors import ArtifactError, UsageError
from gemma4_compile.media.settings import MediaSettings, media_settings
from gemma4_compile.options.chat import ON_GPU, ON_HOST
from gemma4_compile.package.interface import ROWS_AS_CHUNKS
from gemma4_compile.runtime.device.cuda_runtime import CudaError
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.device.programmatic_launch import is_programmatic
from gemma4_compile.runtime.engine.device_sampling import DeviceSampling
from gemma4_compile.runtime.engine.expert_cache import ExpertCache
from gemma4_compile.runtime.engine.expert_placement import (
    PlacedWeights,
    cache_of,
    place_experts,
    watched,
)
from gemma4_compile.runtime.engine.joint import Joint, Riders
from gemma4_compile.runtime.engine.joint_rounds import JointRounds, guesses_of_rows, steps_of_rows
from gemma4_compile.runtime.engine.media_prompt import Tokens
from gemma4_compile.runtime.engine.model_runner import LoadedModel, ModelRunner
from gemma4_compile.runtime.engine.rounds import Rounds
from gemma4_compile.runtime.engine.sequence import Sequence, Sequences
from gemma4_compile.runtime.engine.slot_room import drafter_bytes, package_need
from gemma4_compile.runtime.engine.table_place import table_window
from gemma4_compile.runtime.engine.turns import Turns
from gemma4_compile.runtime.library.kv_state import KvState
from gemma4_compile.runtime.library.native_library import NativeLibrary
from gemma4_compile.runtime.library.steps import graphs_wanted, token_steps
from gemma4_compile.runtime.package.integrity import ByteCount
from gemma4_compile.runtime.package.package import Package
from gemma4_compile.runtime.package.room import (
    Placement,
    Wish,
    check_fits,
    unused_bytes,
)
from gemma4_compile.runtime.sampling.sampling import Float32Array
from gemma4_compile.runtime.speculative.drafter import Drafters, check_drafts

_log = logging.getLogger(__name__)
MOST_SEQUENCES = 1024
"""Of an engine, at a time: more have no memory anywhere."""


class Engine:
    """A model and its sequences; what more it can do is in its parts.

    It begins with one sequence of its own, to which the methods without a sequence belong. One
    thread uses it at a time, with all of its sequences: they share the memory of a forward.

    Attributes
    ----------
    device : where weights and state are
    model : the library there, and what its functions take
    vocab_size : length of the logits
    context_length : positions that each sequence has
    prefill_chunk : most tokens that one forward takes
    sequences : all of them; adds, forks and removes
    sequence : its own
    runner : forwards whose logits stay on the device
    joint : forwards that several sequences share
    sampling : draws tokens of its own sequence on the device
    rounds : guesses tokens of that and checks them; None where there is no drafter. Those of
        other sequences are `rounds.beside(sequence)`
    joint_rounds : rounds of several sequences in one forward; None where there is no drafter
    experts : which layers' experts are in the host's memory
    expert_cache : of these, on the device; None for none
    """

    def __init__(
        self,
        package: Package,
        *,
        context_length: int | None = None,
        progress: ByteCount | None = None,
        graphs: bool | None = None,
        drafts: int | None = None,
        sequences: int = 1,
        ple: str | None = None,
        experts: float | None = None,
        most_bytes: int | None = None,
        expert_cache: int | None = None,
    ) -> None:
        """Load library and weights, and create the state.

        Parameters
        ----------
        package : an opened package
        context_length : positions to make room for; by default what the package was compiled for
        progress : is given how much of the weights is loaded
        graphs : use CUDA graphs; by default unless the environment variable GEMMA4_CUDA_GRAPHS is
            0. Other devices have none.
        drafts : guesses of a round, 0 for none, so that the drafter is not loaded; by default as
            many as pay where the package has a drafter
        sequences : how many there may be at a time. Where they share forwards, memory of all is
            taken at once; else each takes its own when it is first added
        ple : where the table of per-layer embeddings is: `gpu`, on the device, or `host`, in its
            file, of which the rows of a call's tokens are brought there; by default on the device
            where there is room for it
        experts : share of a mixture's experts in the GPU's memory, 0 to 1, at most, the others in
            the host's; by default all that it has room for
        most_bytes : of the device's memory that there is room in for table and experts whose
            places nobody names; by default all that is free
        expert_cache : bytes of the device's memory for those of the host's experts that are read
            most; 0 for none; by default a part of its room where `experts` is not given and not
            all fit, if its driver can

        Raises
        ------
        ArtifactError
            If the package's device is missing or has no room for weights, keys and values, or the
            library or a weight is missing, damaged or from another version.
        UsageError
            If `context_length` is above the compiled one, or there is no drafter for `drafts`, or
            they are too many, or `sequences` is below 1, or there is no table that could be on the
            host, or `experts` is a share that cannot be had: no mixture, or a device whose memory
            is the host's.
        """
        package.check_replies()
        self.context_length = _context_length(package, context_length)
        check_drafts(drafts, package)
        if not 1 <= sequences <= MOST_SEQUENCES:
            raise UsageError(f"sequences: expected 1 to {MOST_SEQUENCES}, found {sequences}")
        self.device = Device.open(package.device)
        library = NativeLibrary(package.library_path, self.device)
        metadata = library.metadata()
        self.prefill_chunk = package.chat_config.prefill_chunk_size
        chunk = min(self.prefill_chunk, self.context_length)
        described = json.loads(metadata)
        compiled = package.chat_config.context_window_size
        unused = unused_bytes(package.library, compiled, self.context_length, sequences)
        has_drafter = drafts != 0 and package.drafter_cache is not None
        window = table_window(
            package,
            described,
            self.device,
            ple,
            self.prefill_chunk,
            unused,
            None if most_bytes is None else most_bytes - drafter_bytes(package, drafts != 0),
        )
        stand_ins = {} if window is None else window.stand_ins
        placed = partial(
            place_experts,
            described,
            self.device,
            experts,
            drafter=has_drafter,
            unused_bytes=unused,
            most_bytes=most_bytes,
        )
        self.experts = placed(cache_bytes=expert_cache)
        wanted = Placement(ple, experts, self.experts.cache_bytes)
        wish = Wish(None, self.context_length, drafts != 0, wanted, sequences=sequences)
        check_room(package, self.device, wish)
        self.expert_cache: ExpertCache | None = None
        try:
            self.expert_cache = cache_of(described, self.device, self.experts)
        except (ArtifactError, CudaError) as error:
            if expert_cache is not None:
                raise
            _log.warning("no cache of hot experts, which nobody asked for: %s", error)
        if self.expert_cache is None and self.experts.cache_bytes:
            # Behind the error, with which the memory goes that the cache had taken by then.
            self.experts = placed(cache_bytes=0)
        place = PlacedWeights(self.device, self.experts, self.expert_cache)
        params = tvm_ffi.Array(package.load_parameters(metadata, place, progress, stand_ins))
        library = watched(library, described, self.expert_cache)
        library.programmatic = is_programmatic(described, self.device)
        self.model = model = LoadedModel(
            library=library,
            device=self.device,
            params=params,
            kv=KvState(library, self.device, self.context_length, chunk, sequences),
            media=media_settings(described),
            vocab_size=package.chat_config.vocab_size,
            prefill_chunk=self.prefill_chunk,
            window=window,
            rows_as_chunks=described.get(ROWS_AS_CHUNKS) is True,
        )
        self.vocab_size = model.vocab_size
        self.kv = model.kv
        if self.expert_cache is not None:
            self.expert_cache.attach(self.kv)
        self.sequences = Sequences(model.kv, self.context_length, self.device)
        self.sequence = self.sequences.add()
        shared = (library, self.device, model.kv.handle, params)
        graphs = graphs_wanted(self.device, graphs)
        steps = token_steps(*shared, self.vocab_size, graphs=graphs)
        self.runner = ModelRunner(model, steps)
        self.sampling = DeviceSampling(self.device, self.runner, self.sequence)
        rows = steps_of_rows(model, graphs=graphs)
        self.joint = Joint(model, self.runner, self.context_length, graphs=graphs, rows=rows)
        self._turns = Turns(self.device, self.runner, self.joint, sequences)
        self.rounds: Rounds | None = None
        self.joint_rounds: JointRounds | None = None
        if has_drafter:
            own = tvm_ffi.Array(package.load_drafter(metadata, place, progress))
            drafters = Drafters(*shared, own, graphs=graphs)
            self.rounds = Rounds(model, self.runner, self.sequence, drafters, drafts)
            joint = rows, None if rows is None else guesses_of_rows(model, own, graphs=graphs)
            self.joint_rounds = JointRounds(model, self.runner, self.context_length, *joint)

    @property
    def placement(self) -> Placement:
        """Where table and experts lie."""
        table = ON_GPU if self.model.window is None else ON_HOST
        cache = self.expert_cache
        taken = 0 if cache is None else cache.device_bytes
        return Placement(table, self.experts.share, taken)

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        context_length: int | None = None,
        progress: ByteCount | None = None,
        graphs: bool | None = None,
        drafts: int | None = None,
        device: str | None = None,
        sequences: int = 1,
        ple: str | None = None,
        experts: float | None = None,
        expert_cache: int | None = None,
    ) -> Engine:
        """Load the package in `directory`; parameters and errors as in the constructor.

        `device` names the library to run, or its device; by default the best that runs here.
        """
        package = Package.open(directory, drafter=drafts != 0, device=device)
        return cls(
            package,
            context_length=context_length,
            progress=progress,
            graphs=graphs,
            drafts=drafts,
            sequences=sequences,
            ple=ple,
            experts=experts,
            expert_cache=expert_cache,
        )

    @property
    def media(self) -> MediaSettings:
        """What the package takes besides text."""
        return self.runner.media

    @property
    def length(self) -> int:
        """Tokens of its own sequence."""
        return self.sequence.length

    def clear(self) -> None:
        """Forget its own sequence; the next token is at position 0."""
        self.sequence.clear()

    def pop(self, count: int) -> bool:
        """Take back the last `count` tokens; False and no change where the rings cannot."""
        return self.sequence.pop(count)

    def prefill(self, ids: Tokens, sequence: Sequence | None = None) -> Float32Array:
        """Add tokens, a chunk at a time, and return the logits (vocab_size,) of the last one.

        Parameters
        ----------
        ids : a `Prompt` where there are media among them
        sequence : to which they are added, by default its own

        Raises
        ------
        ContextFullError
            If they do not fit; none is added then.
        UsageError
            If there are none, an id is outside the vocabulary, the package does not take a medium,
            or a picture that must be whole is longer than a chunk; or the sequence was removed, or
            is another engine's.
        """
        return self._read(self.runner.forward(self._checked(sequence), ids))

    def decode(self, token_id: int, sequence: Sequence | None = None) -> Float32Array:
        """Add one token and return the logits (vocab_size,) of the next; as `prefill`."""
        return self._read(self.runner.forward_one(self._checked(sequence), token_id))

    def read_logits(self, sequence: Sequence | None = None) -> Float32Array:
        """The logits (vocab_size,) of the token that was added last.

        UsageError if there are none, since tokens were taken back or a draw used them; or as of
        `prefill`, of the sequence.
        """
        logits = self.runner.last_logits(self._checked(sequence))
        if logits is None:
            raise UsageError("there are no logits of the last token: add a token first")
        return self._read(logits)

    def step(self, sequences: Collection[Sequence], riders: Riders | None = None) -> list[int]:
        """Add to each the token that was chosen for it last, and let its sampler choose the next.

        The first token after a prompt is chosen without another forward. Up to eight sequences
        share a forward where the library has one for several (`decode_rows`), so that weights are
        read once for all of them; one that is alone runs as in `decode`. What a sampler raises
        comes out after all tokens were added, and nothing is chosen for any: the next step asks all
        samplers again.

        `riders` : rows of a prompt of another sequence that share the forward, no more than
        `joint.most_riders`; nothing is chosen after them

        Raises
        ------
        ContextFullError
            If there is no room in one of them; nothing is added to any.
        UsageError
            If one is named twice, was removed, is another engine's, is within a round, or has no
            sampler, or no logits to choose from, or there are no riders, or too many of them for
            these sequences, or of one of them; nothing is added to any. As after an error of a
            sampler, if that chose no token id, or changed one of the sequences.
        """
        if riders is not None:
            self._checked(riders.sequence)
        return self._turns.step([self._checked(one) for one in sequences], riders)

    def _checked(self, sequence: Sequence | None) -> Sequence:
        """The one that a caller gives, or its own; UsageError as of `Sequences.check`."""
        if sequence is None:
            return self.sequence
        self.sequences.check(sequence)
        return sequence

    def _read(self, logits: tvm_ffi.Tensor) -> Float32Array:
        """Logits (vocab_size,), copied out of the machine's pooled memory."""
        return self.device.read(logits).reshape(-1)


def _context_length(package: Package, wanted: int | None) -> int:
    """What is wished for, by default the compiled one; UsageError where it is longer than that."""
    compiled = package.chat_config.context_window_size
    found = compiled if wanted is None else wanted
    if not 1 <= found <= compiled:
        raise UsageError(
            f"context length: expected 1 to {compiled}, found {found}",
            hint="compile the package with a larger --context",
        )
    return found


def check_room(package: Package, device: Device, wish: Wish) -> None:
    """ArtifactError for a package that would not fit the device, before it is loaded."""
    need = package_need(package, device, wish.placement, wish.drafter, wish.sequences)
    check_fits(str(package.directory), need, device, wish.context_length)
