"""Weights chosen by what a model computes from text: `--calibrate`."""
