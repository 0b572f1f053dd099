"""What does a user's process lose to a process that compiles behind it? ``mixbackend bench behind``.

Place: beside the pools of threads. Input: rounds and seconds. Output: a ``Loss`` per way of starting the other process
and per number of busy cores: calls in a second over calls without it, the longest call, and the user's share of what
both used of the processor.
Ways: ``none`` (no other process), ``idle`` (``SCHED_IDLE``, in the user's own session), ``worker`` (as workers run,
there: ``SCHED_BATCH`` with nice 10), ``nice`` (nice 19, there, too), ``nice session`` (nice 19, in a session of its
own: with autogroups that is a group of its own, which ``nice`` does not reach), ``idle session``, ``plain`` (no
priority).
Busy: ``one core``, ``all cores``, and ``shared core``: both processes are held to one core. There the share says what
the scheduler gives to which of them, whatever else the machine does.
Method: the user's process lives through all rounds and calls one product of matrices after another; in every round each
way takes its turn, in another order. The other process compiles C++ and Python for ever, one thing at a time: unlike a
worker it has no budget, so that what is lost here is an upper bound.
Non-goals: how fast anything is compiled.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mixbackend.backends.common.python_process import module_command
from mixbackend.host.process_tree import send, usage

BUSY = ("one core", "all cores", "shared core")
WAYS = ("none", "idle", "worker", "nice", "nice session", "idle session", "plain")
_USER = "mixbackend.benchmarks.behind_user"
_LOAD = "mixbackend.benchmarks.behind_load"
_WARM_S = 0.5


@dataclass(frozen=True)
class Loss:
    """One way with one number of busy cores.

    Attributes:
        way: one of ``WAYS``.
        busy: one of ``BUSY``.
        call_ms: median milliseconds of a call.
        kept: calls in a second over those without another process, median over the rounds.
        kept_least, kept_most: least and most of the rounds.
        late_ms: 99.9% of the calls took less, median over the rounds.
        longest_ms: the longest call of all rounds.
        behind_cores: processor seconds a second of the process behind.
        share: of the processor seconds of both that the user's process has.
    """

    way: str
    busy: str
    call_ms: float
    kept: float
    kept_least: float
    kept_most: float
    late_ms: float
    longest_ms: float
    behind_cores: float
    share: float


def measure(rounds: int, seconds: float, progress: Callable[[str], None] = lambda text: None) -> list[Loss]:
    """Measure all ways with all numbers of busy cores.

    Args:
        rounds: in which every way takes its turn.
        seconds: of a turn.
        progress: told what is being done.
    """
    shuffled = random.Random(0)
    usable = sorted(os.sched_getaffinity(0))
    losses: list[Loss] = []
    for busy in BUSY:
        threads = len(usable) if busy == "all cores" else 1
        held_to = usable[-1:] if busy == "shared core" else usable
        turns: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
        with _user(threads, held_to) as ask:
            ask(_WARM_S)
            for number in range(rounds):
                for way in shuffled.sample(WAYS, len(WAYS)):
                    progress(f"{busy}, round {number + 1} of {rounds}: {way}")
                    turns[way].append(_turn(way, ask, seconds, held_to))
        losses += [_loss(way, busy, turns) for way in WAYS]
    return losses


def _turn(
    way: str, ask: Callable[[float], dict[str, float]], seconds: float, held_to: Sequence[int]
) -> dict[str, float]:
    if way == "none":
        return {**ask(seconds), "behind": 0.0}
    load = subprocess.Popen(
        module_command(_LOAD, way), stdout=subprocess.PIPE, start_new_session=way.endswith("session"), text=True
    )
    assert load.stdout is not None
    try:
        load.stdout.readline()
        os.sched_setaffinity(load.pid, held_to)
        before = usage(load.pid).seconds
        answer = ask(seconds)
        return {**answer, "behind": usage(load.pid).seconds - before}
    finally:
        send(load.pid, signal.SIGKILL)
        load.wait()
        load.stdout.close()


@contextmanager
def _user(threads: int, held_to: Sequence[int]) -> Any:
    process = subprocess.Popen(
        module_command(_USER),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
    )
    assert process.stdin is not None and process.stdout is not None
    stdin, stdout = process.stdin, process.stdout
    os.sched_setaffinity(process.pid, held_to)

    def ask(seconds: float) -> dict[str, float]:
        stdin.write(f"{seconds}\n")
        stdin.flush()
        answer: dict[str, float] = json.loads(stdout.readline())
        return answer

    try:
        yield ask
    finally:
        stdin.close()
        process.wait()
        stdout.close()


def _loss(way: str, busy: str, turns: Mapping[str, Sequence[Mapping[str, float]]]) -> Loss:
    mine, alone = turns[way], turns["none"]
    kept = [one["calls"] / other["calls"] for one, other in zip(mine, alone, strict=True)]
    middle = lambda name: statistics.median(turn[name] for turn in mine)  # noqa: E731
    return Loss(
        way=way,
        busy=busy,
        call_ms=middle("call_ms"),
        kept=statistics.median(kept),
        kept_least=min(kept),
        kept_most=max(kept),
        late_ms=middle("late_ms"),
        longest_ms=max(turn["longest_ms"] for turn in mine),
        behind_cores=statistics.median(turn["behind"] / turn["seconds"] for turn in mine),
        share=statistics.median(turn["used_s"] / (turn["used_s"] + turn["behind"]) for turn in mine),
    )
