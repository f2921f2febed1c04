"""What the stock client's pipeline of embeddings gets is what transformers makes of each text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm_ffi

pytest.importorskip("transformers")

from gemma4_compile import abi
from tests import encoders
from tests.encoders import CPU, TINY

BOS, EOS = 2, 1  # of transformers' config
F32_BOUND = 1e-4  # of a channel of a vector of length 1
LONGEST = 20  # memory is for the rows of one text of so many tokens


def test_the_first_rows_are_embeddings_of_texts_between_begin_and_end(tmp_path: Path) -> None:
    """One group, one of each text, two of two and one, and a text alone."""
    model = encoders.reference(TINY, 5, whole=True)
    values = {**model.config.to_dict(), "dtype": "float32"}
    weights = encoders.weights_of(model)
    library = encoders.compiled(values, weights, tmp_path, pads_texts=True, most_rows=LONGEST)
    prefill = library.library.compiled_function(abi.EMBED_PADDED)
    for lengths in ((2, 5, 1), (7, 1, 13, LONGEST), (3, 9, 9), (LONGEST,)):
        texts = encoders.random_texts(lengths, 5)
        texts[-1][0] = BOS  # a text that has its begin is taken as it is
        longest = max(lengths)
        ids, mask = np.zeros((2, len(texts), longest), np.int32)
        for row, text in enumerate(texts):
            ids[row, : len(text)], mask[row, : len(text)] = text, 1

        placed = [CPU.place(one) for one in (ids, mask)]
        found = np.array(CPU.read(prefill(*placed, tvm_ffi.Array(library.params))))

        whole = [text if text[0] == BOS else [BOS, *text, EOS] for text in texts]
        assert found.shape == (len(texts), longest, TINY["embedding_dim"])
        expected = encoders.embedded(model, whole)
        np.testing.assert_allclose(found[:, 0], expected, rtol=0, atol=F32_BOUND)
        assert not found[:, 1:].any()
