"""Properties: what the contract promises of every claimed region, one function each, by name.

A property gets a ``Tested`` case and returns the ``Problem`` that it found, or ``None``. Where there is nothing to ask
it raises ``NotAsked`` with the reason. They are asked in the order of ``ALL``; whatever one of them raises otherwise is
a problem of the backend's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mixbackend.certify.properties import calls, constants, memory, sizes, stored, threads
from mixbackend.certify.tested import Problem, Tested

Property = Callable[[Tested], Problem | None]

ALL: Mapping[str, Property] = {
    "repeated": calls.repeated,
    "kept results": memory.kept_results,
    "updated inputs": calls.updated_inputs,
    "strides": calls.strides,
    "parameters": calls.parameters,
    "one tensor twice": calls.one_tensor_twice,
    "poisoned memory": memory.poisoned_memory,
    "aliasing": memory.aliasing,
    "kept inputs": memory.kept_inputs,
    "threads": threads.several_threads,
    "constants": constants.bound,
    "other sizes": sizes.other_sizes,
    "zero-size": sizes.zero_size,
    "artifact": stored.loaded_here,
}

COMPILING = frozenset({"zero-size"})
"""Those that have the backend compile another region."""
