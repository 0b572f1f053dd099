"""A failing program made small: fewer calls, results, statements, plainer leaves, as long as it fails alike.

Place: after ``judging``. Input: a program and a question, whether a candidate still fails. Output: a smaller program.
Invariants: every step is one that the question said yes to; the same question gives the same program.
Non-goals: the smallest program there is.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from mixbackend.benchmarks.fuzz.program import Program, Statement


def shrink(program: Program, fails: Callable[[Program], bool], seconds: float = 60.0) -> Program:
    """Take away what is not needed.

    Args:
        program: fails.
        fails: whether a candidate fails in the same way.
        seconds: after these no further candidate is tried.
    """
    end = time.monotonic() + seconds
    while True:
        for candidate in _smaller(program):
            if time.monotonic() > end:
                return program
            if fails(candidate):
                program = candidate
                break
        else:
            return program


def pruned(program: Program) -> Program:
    """Without unused leaves and edits of such."""
    used = frozenset(program.results).union(*(item.names for item in program.statements))
    leaves = tuple(leaf for leaf in program.leaves if leaf.name in used)
    if not any(leaf.role == "input" for leaf in leaves):
        leaves = (*[leaf for leaf in program.leaves if leaf.role == "input"][:1], *leaves)
    names = {leaf.name for leaf in leaves}
    calls = tuple(
        replace(call, edits=tuple(text for text in call.edits if set(re.findall(r"model\.([a-z]\d+)", text)) <= names))
        for call in program.calls
    )
    renamed = {}
    for place, leaf in enumerate(leaf for leaf in leaves if leaf.role == "input"):
        renamed[leaf.name] = f"x{place}"
    return replace(
        program,
        leaves=tuple(replace(leaf, name=renamed.get(leaf.name, leaf.name)) for leaf in leaves),
        statements=tuple(item.renamed(renamed) for item in program.statements),
        results=tuple(renamed.get(name, name) for name in program.results),
        calls=calls,
    )


def _smaller(program: Program) -> Iterator[Program]:
    """Candidates, the boldest first."""
    for place in range(len(program.calls)):
        if len(program.calls) > 1:
            yield replace(program, calls=program.calls[:place] + program.calls[place + 1 :])
    half = len(program.statements) // 2
    while half > 1:
        for begin in range(0, len(program.statements), half):
            yield from _without(program, range(begin, min(begin + half, len(program.statements))))
        half //= 2
    for place in range(len(program.statements) - 1, -1, -1):
        yield from _without(program, range(place, place + 1))
        yield from _bypassed(program, place)
    for place in range(len(program.results)):
        if len(program.results) > 1:
            yield pruned(replace(program, results=program.results[:place] + program.results[place + 1 :]))
    yield from _plainer_calls(program)
    yield from _plainer_leaves(program)


def _without(program: Program, places: range) -> Iterator[Program]:
    """Without some statements and all that needs them."""
    gone: set[str] = set()
    kept: list[Statement] = []
    for place, item in enumerate(program.statements):
        if place in places or item.names & gone:
            gone |= set(item.targets)
        else:
            kept.append(item)
    results = tuple(name for name in program.results if name not in gone)
    if not results:
        results = (kept[-1].targets or program.results)[:1] if kept and kept[-1].targets else ()
    if results:
        yield pruned(replace(program, statements=tuple(kept), results=results))


def _bypassed(program: Program, place: int) -> Iterator[Program]:
    """What a statement makes is one of the values that it reads."""
    item = program.statements[place]
    if len(item.targets) != 1:
        return
    for name in sorted(item.names):
        names = {item.targets[0]: name}
        later = tuple(other.renamed(names) for other in program.statements[place + 1 :])
        results = tuple(names.get(result, result) for result in program.results)
        yield pruned(replace(program, statements=program.statements[:place] + later, results=results))


def _plainer_calls(program: Program) -> Iterator[Program]:
    for place, call in enumerate(program.calls):
        others = [replace(call, edits=())] if call.edits else []
        others += [replace(call, grad=False)] if call.grad else []
        for other in others:
            yield replace(program, calls=(*program.calls[:place], other, *program.calls[place + 1 :]))
    if program.dynamic is not None:
        yield replace(program, dynamic=None)
    if program.scalars:
        yield replace(program, scalars=False)
    if program.ones:
        yield replace(program, ones=False)


def _plainer_leaves(program: Program) -> Iterator[Program]:
    for place, leaf in enumerate(program.leaves):
        others = [replace(leaf, layout="contiguous")] if leaf.layout != "contiguous" else []
        others += [replace(leaf, values="normal")] if leaf.values in ("special", "zeros", "whole") else []
        others += [replace(leaf, grad=False)] if leaf.grad else []
        others += [replace(leaf, dtype="float32")] if leaf.dtype in ("float16", "bfloat16", "float64") else []
        for axis, size in enumerate(leaf.shape):
            if size == "s0" and len(program.calls) == 1:
                others.append(
                    replace(
                        leaf, shape=(*leaf.shape[:axis], dict(program.calls[0].sizes)["s0"], *leaf.shape[axis + 1 :])
                    )
                )
        for other in others:
            yield replace(program, leaves=(*program.leaves[:place], other, *program.leaves[place + 1 :]))
    for size in sorted({item for leaf in program.leaves for item in leaf.shape if isinstance(item, int) and item > 2}):
        shapes = [tuple(2 if item == size else item for item in leaf.shape) for leaf in program.leaves]
        yield replace(
            program,
            leaves=tuple(replace(leaf, shape=shape) for leaf, shape in zip(program.leaves, shapes, strict=True)),
        )
