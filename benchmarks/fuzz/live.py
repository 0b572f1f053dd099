"""Live selection in fuzzed programs: other plans are tried from the first call on, in many calls of one program.

Place: used by ``judging`` for the setting ``live``. Input: a program. Output: the program with more calls; a context in
which calls have paid for trying, every backend's rates count as measured, all graphs try at once, and a round decides
by the last digits of its times: about half of what is tried takes over, so that every program has run in the end.
Non-goals: what is built behind; challengers are built between two calls. Whether decisions are right.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from unittest import mock

from mixbackend.benchmarks.fuzz.program import Program
from mixbackend.contracts import OpGraph
from mixbackend.cost.costs import SessionCosts
from mixbackend.select.live import allowance, call_meter, duel, processor_challengers, turns
from mixbackend.select.live.arbiter import Arbiter
from mixbackend.select.live.paired_decision import Outcome, Verdict
from mixbackend.select.live.turns import Round

CALLS = 60
"""Of a program: a challenger takes nine, beside those that load it."""
EDITED = (0, 4)
"""Repetitions in which weights are edited between calls."""


def repeated(program: Program) -> Program:
    """A program with calls that come over and over again, ``CALLS`` in all.

    Weights are edited in some of them: doubled in all, they would overflow.
    """
    known = len(program.calls)
    calls = (
        replace(program.calls[place % known], edits=program.calls[place % known].edits * (place // known in EDITED))
        for place in range(CALLS)
    )
    return replace(program, calls=tuple(calls))


@contextlib.contextmanager
def opened() -> Iterator[None]:
    """See the module's docstring."""
    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (allowance, "LEAST_S", 0.0),
            (allowance, "LEAST_CALLS", 1),
            (allowance, "SHARE", 1e6),
            (call_meter, "LOOK_EVERY_S", 0.0),
            (turns, "TURN_S", 0.0),
            (processor_challengers, "LEAST_S", 0.0),
            (duel, "decide", _decide),
            (Arbiter, "may", lambda *_: True),
            (SessionCosts, "comparable", _all_comparable),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        yield


def _decide(rounds: Sequence[Round]) -> Outcome:
    if not rounds:
        return Outcome(Verdict.OPEN)
    ratio = rounds[0].challenger.call_s / rounds[0].champion.call_s
    return Outcome(Verdict.FASTER if int(ratio * 1e6) % 2 else Verdict.SLOWER, len(rounds), ratio)


def _all_comparable(costs: SessionCosts, _: OpGraph) -> frozenset[str]:
    return frozenset(item.name for item in costs.backends if not item.traits().reference)
