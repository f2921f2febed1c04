"""Names and constants that the WebLLM client and our own runtime call by. No imports of ours.

Source: the published npm package `@mlc-ai/web-llm`, version `WEBLLM_VERSION`.
"""

from __future__ import annotations

WEBLLM_VERSION = "0.2.86"

MANIFEST_FILE = "mlc-model-manifest.json"
CHAT_CONFIG_FILE = "mlc-chat-config.json"
TENSOR_CACHE_FILE = "tensor-cache.json"
DRAFTER_CACHE_FILE = "drafter-tensor-cache.json"
"""The drafter's weights: in the form of TENSOR_CACHE_FILE, which does not list them."""
DRAFTER_SHARD = "params_shard_drafter_"
"""What the names of a drafter's shards begin with."""
PROVENANCE_FILE = "provenance.json"
NUMERICS_FILE = "numerics.json"
NUMERICS_PICTURE = "numerics.svg"
NUMERICS_FILES = (NUMERICS_FILE, NUMERICS_PICTURE)
LICENCE_FILES = ("LICENSE", "NOTICE")
"""Of what is linked into the library; they come and go with it."""
LIBRARY_STEM = "model"

EMBED = "embed"
PREFILL = "prefill_tokens"
DECODE = "decode_tokens"
CREATE_KV_CACHE = "create_kv_cache"
SOFTMAX = "softmax_with_temperature"
ARGSORT = "argsort_probs"
SAMPLE_TOP_P = "sample_with_top_p"
LOGIT_BIAS = "apply_logit_bias_inplace"
PENALTY = "apply_penalty_inplace"
BITMASK = "apply_bitmask_inplace"
METADATA = "_metadata"
EMBED_TEXTS = "embed_texts"  # of encoders, which have none of the functions above but that
EMBED_PADDED = "prefill"  # the same in the stock client's form, in libraries for browsers
# Of packages with a drafter; our own runtime's, the stock client calls none of them.
DRAFT = "draft_token"
VERIFY = "verify_tokens"
DRAW_ROWS = "draw_rows"
VERIFY_ROWS = "verify_rows"  # where a forward takes some tokens of each of several sequences
DRAFT_ROWS = "draft_rows"  # likewise, a guess of each of several sequences
DECODE_ROWS = "decode_rows"  # our own runtime's, where a step takes a token of several sequences
# Of packages that take pictures or sounds.
EMBED_IMAGE = "embed_image"
EMBED_AUDIO = "embed_audio"
IMAGE_ADAPTER = "image_embed"  # the client's, for a whole picture of one size
AUDIO_ADAPTER = "audio_embed"

PROGRAM = "text"
PROGRAM_EXPORTS = {
    "embed_tokens": EMBED,
    "create_kv_cache": CREATE_KV_CACHE,
    "prefill_tokens": PREFILL,
    "decode_tokens": DECODE,
}

MODALITY_TEXT = 0
MODALITY_MEDIA = 1  # the client's, for rows that come from an adapter
MODALITY_AUDIO = 2  # our own runtime's, for rows of sounds: they are causal for every size

KV_CREATE = "gemma4_kv_create"
KV_KEY = "gemma4_kv_key"
KV_VALUE = "gemma4_kv_value"
KV_POSITIONS = "gemma4_kv_positions"
KV_ROTARY = "gemma4_kv_rotary"
# Of all slots, where kernels take addresses; what each row of a forward of several is.
KV_KEY_POOL = "gemma4_kv_key_pool"
KV_VALUE_POOL = "gemma4_kv_value_pool"
KV_ROW_SLOTS = "gemma4_kv_row_slots"
# Where each slot has tensors of its own: those of the slot that a row is of.
KV_KEY_OF_ROW = "gemma4_kv_key_of_row"
KV_VALUE_OF_ROW = "gemma4_kv_value_of_row"

# Native callers only; WebLLM drives the same object through vm.builtin.kv_state_*.
KV_CLEAR = "gemma4_kv_clear"
KV_ADD_SEQUENCE = "gemma4_kv_add_sequence"
KV_REMOVE_SEQUENCE = "gemma4_kv_remove_sequence"
KV_FORK_SEQUENCE = "gemma4_kv_fork_sequence"
KV_BEGIN_FORWARD = "gemma4_kv_begin_forward"
KV_END_FORWARD = "gemma4_kv_end_forward"
KV_POP_N = "gemma4_kv_pop_n"
KV_LENGTH = "gemma4_kv_length"
# Native libraries only: rows of a sequence, to the host's memory and back.
KV_ROW_LAYOUT = "gemma4_kv_row_layout"
KV_SHORTEST_LENGTH = "gemma4_kv_shortest_length"
KV_READ_ROWS = "gemma4_kv_read_rows"
KV_WRITE_ROWS = "gemma4_kv_write_rows"
KV_ROW_PLACES = "gemma4_kv_row_places"
KV_EXPECT_ROWS = "gemma4_kv_expect_rows"
KV_RESUME = "gemma4_kv_resume"

SUBMIT = "gemma4_submit"  # in libraries for browsers: sends the launches so far to the GPU

CHECK_TENSORS = "gemma4_check_tensors"  # refuses what a function was not compiled for

LINKED_FUNCTIONS = (
    CHECK_TENSORS,
    *(KV_CREATE, KV_KEY, KV_VALUE, KV_POSITIONS, KV_ROTARY),
    *(KV_KEY_POOL, KV_VALUE_POOL, KV_ROW_SLOTS, KV_KEY_OF_ROW, KV_VALUE_OF_ROW),
    *(KV_CLEAR, KV_ADD_SEQUENCE, KV_REMOVE_SEQUENCE, KV_FORK_SEQUENCE),
    *(KV_BEGIN_FORWARD, KV_END_FORWARD, KV_POP_N, KV_LENGTH),
)
"""C++ functions that every library holds."""
