"""The only door to torch's private names.

Place: imported by whoever needs something that torch does not promise to keep.
Invariants: no other module of the project imports a name with a leading underscore from torch, or from a module whose
path has one; ``tests/test_torch_compat.py`` exercises every name here, so a new torch release is this file's work.
"""

from __future__ import annotations
