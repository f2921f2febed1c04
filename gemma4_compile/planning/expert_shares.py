"""Memory of a plan by the share of its experts that lies on the device; the rest is the host's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gemma4_compile.device_kinds import NATIVE_KINDS
from gemma4_compile.planning.plan import BuildPlan

SHARES = (1.0, 0.75, 0.5, 0.25, 0.0)
"""That are shown."""


@dataclass(frozen=True)
class ExpertShare:
    """What a share of the experts on the device comes to; whole layers are in one place.

    Attributes
    ----------
    share : at most so much of them is on the device
    host_layers : whose experts are in the host's memory
    device_bytes : weights, keys and values, and activations that the device holds
    host_bytes : memory of the host that the device reads
    bytes_per_token : of these, that a decoded token reads over the bus
    """

    share: float
    host_layers: int
    device_bytes: int
    host_bytes: int
    bytes_per_token: int


def expert_shares(plan: BuildPlan, shares: Sequence[float] = SHARES) -> tuple[ExpertShare, ...]:
    """Memory by share; none without experts, or where a device reads no memory of the host."""
    kind = NATIVE_KINDS.get(plan.target.device)
    experts = dict(plan.recipe.parts).get("experts", 0)
    if kind is None or not kind.reads_host or not experts:
        return ()
    config, layers = plan.config, plan.config.num_hidden_layers
    found = []
    for share in shares:
        host = layers - int(share * layers)
        nbytes = experts * host // layers
        found.append(
            ExpertShare(
                share=share,
                host_layers=host,
                device_bytes=plan.device_memory_bytes - nbytes,
                host_bytes=nbytes,
                bytes_per_token=nbytes * config.top_k_experts // config.num_experts,
            )
        )
    return tuple(found)
