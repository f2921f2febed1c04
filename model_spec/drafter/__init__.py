"""The drafter: a few small layers that guess tokens from the target's keys and values."""
