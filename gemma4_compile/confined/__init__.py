"""Programs in processes of their own, under limits, because what they read is a stranger's.

Each is started as `python -m gemma4_compile.confined.NAME`. They import neither TVM nor NumPy (but
for sounds), so that they start quickly, and nothing of the runtime or the compiler.
"""
