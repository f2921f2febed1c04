"""The software drivers that the kernels run on; a test without its driver is skipped by name."""

from tests.web.conftest import lavapipe, lavapipe_passes, swiftshader

__all__ = ["lavapipe", "lavapipe_passes", "swiftshader"]
