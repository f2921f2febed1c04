"""Runs a compiled package in Python: engine, sampling and chat. Imports no compiler."""
