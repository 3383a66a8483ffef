"""Compiles upstream's extensions in a build tree.

A build tree holds everything one build reads and writes, side by side, under names that never change:
`source` (upstream's, patched), `cuda` (the toolkit), `torch` (the target's), `cutlass`, `python` (headers of this
machine's Python), `answers` (what upstream's scripts import), `tools`, and `obj`, where the compilers run. All
paths in the build's commands are relative to `obj`, so the same inputs give the same commands, the same cache
keys and the same bytes in any folder.
"""
