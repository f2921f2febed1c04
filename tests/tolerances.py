"""Every tolerance of the tests, each with where it comes from. Raising one needs an ADR.

The logits of a random test model are sums ``E . n`` over H = 64 to 128 channels of embedding rows
(deviation 0.5) and normed states (deviation 1). A relative error r of the state, in a direction
that has nothing to do with the rows, moves a logit by 0.5 sqrt(H) r in the mean; 4 deviations cover
the largest of the 256 x 64 logits that a test looks at.
"""

from math import sqrt

_BLOCKS = 24  # attention, feed-forward and per-layer embedding of 8 layers
_REDUCTION = 256  # terms of the longest sum
_MEAN_LOGIT_GAIN = 0.5 * sqrt(128)
_LARGEST_OF_MANY = 4.0
_SAFETY = 3.0  # for what the model above leaves out: norms, exponentials, unlucky directions

# Roundings of a float32 sum add up like a random walk, and so do the blocks: 4.7e-6.
RELATIVE_F32 = sqrt(_BLOCKS * _REDUCTION) * 2.0**-24

# Two float32 paths with sums in different orders. Largest error seen: 8e-6 of the largest value.
HIDDEN_F32_RELATIVE = _SAFETY * RELATIVE_F32

# About 3e-4. Largest error seen: 1e-4. The mildest of the mistakes that tests plant, erf instead of
# tanh in GELU, costs 7e-3.
LOGITS_F32 = _SAFETY * _LARGEST_OF_MANY * _MEAN_LOGIT_GAIN * RELATIVE_F32

# In the f16 recipes the sums stay float32, but what enters them is rounded to 11 bits: the normed
# input, K, V, the mean of each split of the attention and its result, and (in the dense and group
# scales) nothing else. An evenly spread rounding error has a deviation of 0.4 x 2^-11 of the value.
# Each block has at most 4 such roundings in a chain, and they add up like a random walk: 1.9e-3.
_ROUNDINGS_F16 = 4
RELATIVE_F16 = sqrt(_BLOCKS * _ROUNDINGS_F16) * 0.4 * 2.0**-11


def relative_error(blocks: int, recipe: str) -> float:
    """How far a state may be off, relative to its size, after so many blocks of a recipe."""
    one = _ROUNDINGS_F16 * (0.4 * 2.0**-11) ** 2 if recipe.endswith("f16") else 0.0
    return _SAFETY * sqrt(blocks * (one + _REDUCTION * 2.0**-48))


# About 0.13. Largest error seen: 0.09.
LOGITS_F16 = _SAFETY * _LARGEST_OF_MANY * _MEAN_LOGIT_GAIN * RELATIVE_F16

# With residuals of 1e5 the token's embedding (exact, and about half of the state otherwise) no
# longer dilutes the errors of the blocks. Largest errors seen: 2e-4 and 0.17.
LARGE_RESIDUALS = 2.0

# With int8 activations every block rounds two vectors of a position in groups of 32. A group's
# largest is 2.4 deviations in the mean, a unit a 127th of that, and an even error has a deviation
# of 12^-1/2 units: 0.0055 of the value. The K and V that a position attends to come from others,
# whose errors are as large and independent: sqrt(2). 5.4e-2 after all blocks.
_ROUNDINGS_INT8 = 2
RELATIVE_INT8 = sqrt(2.0 * _BLOCKS * _ROUNDINGS_INT8) * 2.4 / 127 / sqrt(12)

# About 1.2, and 1.7 between two builds: an early difference in the last bit puts later channels on
# other sides of their rounding edges, so that both errors are independent. No safety on top: the
# token's embedding, which is exact, dilutes them. Largest errors seen: 1.04 and 0.82.
LOGITS_INT8 = _LARGEST_OF_MANY * _MEAN_LOGIT_GAIN * RELATIVE_INT8
LOGITS_INT8_BOTH = sqrt(2.0) * LOGITS_INT8

ACTIVATIONS = {
    "f32": LOGITS_F32,
    "q4f32": LOGITS_F32,
    "f16": LOGITS_F16,
    "q4f16": LOGITS_F16,
    "q4f16m": LOGITS_F16,
    "q4kf16": LOGITS_F16,
    "q4kf16m": LOGITS_F16,
    "q8f16": LOGITS_F16,
}
"""Tolerance of logits by recipe, against the same (dequantised) weights in float32."""

# A router's scores are sums over H channels of a normed state (deviation 1), a scale (1), H^-0.5
# and weights (deviation H^-0.5): their deviation is H^-0.5, 1/8 for 64 channels. An error of the
# state moves the distance of two scores by sqrt(2) times as much; 3 deviations of that.
_ROUTER_SCORE = 0.125
_GAP_PER_ERROR = 3.0 * sqrt(2.0) * _ROUTER_SCORE

ROUTING_GAPS = {
    recipe: _GAP_PER_ERROR * (RELATIVE_F32 if bound == LOGITS_F32 else RELATIVE_F16)
    for recipe, bound in ACTIVATIONS.items()
}
"""Distance of two experts' scores, by recipe, from which on their order is the reference's."""

# Rows that stand for a picture are sums over normed channels (deviation 1) with weights of
# deviation width^-0.5: a relative error of the state is the rows' own. A tower of 3 layers has 8
# blocks, patch embedder and pooling included, and as many roundings a block as the decoder's: 5e-5
# and 1.4e-2. Largest errors seen: 1.7e-5 and 3e-3.
_VISION_BLOCKS = 8
VISION_ROWS_F32 = _SAFETY * _LARGEST_OF_MANY * RELATIVE_F32
VISION_ROWS_F16 = (
    _SAFETY * _LARGEST_OF_MANY * sqrt(_VISION_BLOCKS * _ROUNDINGS_F16) * 0.4 * 2.0**-11
)
VISION_ROWS = {
    "f32": VISION_ROWS_F32,
    "q4f32": VISION_ROWS_F32,
    "f16": VISION_ROWS_F16,
    "q4f16": VISION_ROWS_F16,
    "q8f16": VISION_ROWS_F16,
}
"""Tolerance of a picture's rows by recipe, against the same (dequantised) weights in float32."""
# Rows of a sound are sums of a normed vector (deviation 1) with weights of deviation N^-0.5: an
# error of the vector is the rows'. A tower of two layers has 4 blocks in each, and subsampling of
# up to 9 x 128 terms before them: 8e-5. Largest error seen: 3e-5. The mildest of the mistakes that
# tests plant costs 1e-3.
_SOUND_BLOCKS = 2 * 4 + 3
_SOUND_REDUCTION = 9 * 128
SOUND_ROWS_F32 = _SAFETY * _LARGEST_OF_MANY * sqrt(_SOUND_BLOCKS * _SOUND_REDUCTION) * 2.0**-24

# In the f16 recipes each matmul's input is rounded that a norm bounds: five in a layer, one in each
# step of subsampling, and the vector of the projection. Bounds that clip take the size of a block's
# result, not the errors of what they leave: twice. 1.7e-2; largest error seen: 1.1e-2.
_SOUND_ROUNDINGS_F16 = 2 * 5 + 3
SOUND_ROWS_F16 = 2 * _SAFETY * _LARGEST_OF_MANY * sqrt(_SOUND_ROUNDINGS_F16) * 0.4 * 2.0**-11

# With int8 activations those and the inputs that no norm bounds, three in a layer, have the even
# error of `RELATIVE_INT8` for a vector, in one layer: 0.14. Largest error seen: 0.06.
_SOUND_ROUNDINGS_INT8 = 8 + 3
SOUND_ROWS_INT8 = 2 * _LARGEST_OF_MANY * sqrt(_SOUND_ROUNDINGS_INT8) * 2.4 / 127 / sqrt(12)

SOUND_ROWS = {
    recipe: SOUND_ROWS_F32 if bound == LOGITS_F32 else SOUND_ROWS_F16
    for recipe, bound in ACTIVATIONS.items()
}

# Two orders of a sum of 320 products, relative to the largest band of a sound: 3e-6.
MEL_F32 = _SAFETY * sqrt(320) * 2.0**-24
