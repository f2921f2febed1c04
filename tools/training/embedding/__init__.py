"""How `tiny-embedding` was trained: on sentences with one meaning and other words."""
