"""The drafter: a few small layers that draft tokens from the target's keys and values."""
