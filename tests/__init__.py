"""Tests of the whole project, and the small models that they run."""
