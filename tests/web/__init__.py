"""Packages on WebGPU: Dawn in Node, and stock WebLLM in headless Chromium."""
