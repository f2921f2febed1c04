"""Sizes of the attention of a decode step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DecodeAttentionTuning:
    """Attention of one position.

    Attributes
    ----------
    threads : of a block, at most
    loads : vectors of four float16 keys that a thread has under way, at most
    heads : query heads of a block, at most; K and V are read once for all of them
    min_blocks : aim: a block takes fewer heads where there would be fewer blocks
    sliding_splits, full_splits : blocks that share the keys of a KV head, at most
    max_blocks : splits times KV heads, at most
    split_channels : channels of keys that a split has at least, and in multiples of
    float32_split_channels : the same of keys in float32, which fill as many registers; 0: as above
    joint_splits, joint_blocks, joint_grains : where rows are of several sequences: splits and
        splits times KV heads, at most, and times `split_channels` that a full layer's split has a
        multiple of, of more than eight query heads; 0 splits: as for one sequence
    warp_keys : keys of 256 channels that a warp has under way, where each goes over keys of its
        own, as of rows of several sequences; 0: the block's threads share their keys
    warp_sums : sums of a lane of such a warp, at most: channels of query heads
    warp_threads, warp_resident : of such a block; blocks that a multiprocessor holds
    matrix_head_dim : channels of heads from which on one position, and one in each of several
        sequences, have the block of kernels/attention/tensor_core_decode.py; 0: none
    early_keys : earlier calls' keys are asked for before the launches ahead have ended
    """

    threads: int = 256
    loads: int = 16
    heads: int = 4
    min_blocks: int = 64
    sliding_splits: int = 8
    full_splits: int = 128
    max_blocks: int = 256
    split_channels: int = 16384
    float32_split_channels: int = 0
    joint_splits: int = 0
    joint_blocks: int = 0
    joint_grains: int = 0
    warp_keys: int = 0
    warp_sums: int = 32
    warp_threads: int = 256
    warp_resident: int = 2
    matrix_head_dim: int = 0
    early_keys: bool = False
