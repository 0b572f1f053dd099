"""What does a user's process lose to a process that compiles behind it? ``mixbackend bench behind``.

Place: beside the pools of threads. Input: rounds and seconds. Output: a ``Loss`` per way of starting the other process
and per number of busy cores: calls in a second over calls without it, and the longest call.
Ways: ``none`` (nobody behind), ``ours`` (as ``host.behind_governor`` starts workers: ``SCHED_IDLE``, in the user's own
session), ``nice`` (nice 19, in the user's own session), ``nice session`` (nice 19, in a session of its own: with
autogroups that is a group of its own, which ``nice`` does not reach), ``idle session``, ``plain`` (no priority).
Method: the user's process lives through all rounds and calls one product of matrices after another, on one core or on
all; in every round each way takes its turn, in another order. The other process compiles C++ and Python for ever, one
thing at a time: unlike a worker it has no budget, so that what is lost here is an upper bound.
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

WAYS = ("none", "ours", "nice", "nice session", "idle session", "plain")
_USER = "mixbackend.benchmarks.behind_user"
_LOAD = "mixbackend.benchmarks.behind_load"
_WARM_S = 0.5


@dataclass(frozen=True)
class Loss:
    """One way with one number of busy cores.

    Attributes:
        way: one of ``WAYS``.
        threads: of the user's process.
        call_ms: median milliseconds of a call.
        kept: calls in a second over those without anybody behind, median over the rounds.
        kept_least, kept_most: least and most of the rounds.
        late_ms: 99.9% of the calls took less, median over the rounds.
        longest_ms: the longest call of all rounds.
        behind_cores: processor seconds a second of the process behind.
    """

    way: str
    threads: int
    call_ms: float
    kept: float
    kept_least: float
    kept_most: float
    late_ms: float
    longest_ms: float
    behind_cores: float


def measure(
    rounds: int, seconds: float, threads: Sequence[int], progress: Callable[[str], None] = lambda text: None
) -> list[Loss]:
    """Measure all ways.

    Args:
        rounds: in which every way takes its turn.
        seconds: of a turn.
        threads: of the user's process, one after another.
        progress: told what is being done.
    """
    shuffled = random.Random(0)
    losses: list[Loss] = []
    for count in threads:
        turns: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
        with _user(count) as ask:
            ask(_WARM_S)
            for number in range(rounds):
                for way in shuffled.sample(WAYS, len(WAYS)):
                    progress(f"{count} threads, round {number + 1} of {rounds}: {way}")
                    turns[way].append(_turn(way, ask, seconds))
        losses += [_loss(way, count, turns) for way in WAYS]
    return losses


def _turn(way: str, ask: Callable[[float], dict[str, float]], seconds: float) -> dict[str, float]:
    if way == "none":
        return {**ask(seconds), "behind": 0.0}
    load = subprocess.Popen(
        module_command(_LOAD, way), stdout=subprocess.PIPE, start_new_session=way.endswith("session"), text=True
    )
    assert load.stdout is not None
    try:
        load.stdout.readline()
        before = usage(load.pid).seconds
        answer = ask(seconds)
        return {**answer, "behind": (usage(load.pid).seconds - before) / seconds}
    finally:
        send(load.pid, signal.SIGKILL)
        load.wait()
        load.stdout.close()


@contextmanager
def _user(threads: int) -> Any:
    process = subprocess.Popen(
        module_command(_USER),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
    )
    assert process.stdin is not None and process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

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


def _loss(way: str, threads: int, turns: Mapping[str, Sequence[Mapping[str, float]]]) -> Loss:
    mine, alone = turns[way], turns["none"]
    kept = [one["calls"] / other["calls"] for one, other in zip(mine, alone, strict=True)]
    middle = lambda name: statistics.median(turn[name] for turn in mine)  # noqa: E731
    return Loss(
        way=way,
        threads=threads,
        call_ms=middle("call_ms"),
        kept=statistics.median(kept),
        kept_least=min(kept),
        kept_most=max(kept),
        late_ms=middle("late_ms"),
        longest_ms=max(turn["longest_ms"] for turn in mine),
        behind_cores=middle("behind"),
    )
