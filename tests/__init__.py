"""Tests of the whole project, and the small models that they run."""

import os

# Before NumPy is loaded, here and in what tests start. Its matrices are small here: a second thread
# that waits for its share takes ten times the processor's time of the product, beside other work.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
