"""Do the pools of threads in one process disturb one another? ``mixbackend bench threads``.

Place: beside the model suite. Input: rounds and calls. Output: ``Outcome`` per setting: how long regions of several
libraries take in turns in one process, over how long the same regions take alone, each in a process of its own.
Settings, each in fresh processes: ``imported first`` (torch was imported with nothing set; the running process is put
right by the thread policy), ``sleeping`` (idle threads sleep, as set before the import), and ``no policy`` (nothing set
and nothing done: what the policy is for).
Method: all processes live side by side and only one works at a time; in every round each takes its turn, and the ratio
is taken round by round. Parts alone run with nothing set, where torch's threads spin between regions as in any process
of one pool, and where they sleep. Which is faster depends on what else the machine
does; the ratio is over the faster one, part by part.
Non-goals: the speed of the libraries.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from mixbackend.backends.common.python_process import module_command
from mixbackend.benchmarks.idle_threads import make_threads_sleep, without_decisions

PARTS = ("onednn", "onnxruntime", "codegen", "openvino", "torch")
"""In the order of the turns: neighbours are on different pools but for the last and the first."""

SETTINGS = ("imported first", "sleeping", "no policy")
_ENVIRONMENTS = ("nothing set", "sleeping")
BARS = {"imported first": 1.15, "sleeping": 1.10}
"""The largest ratio that counts as sharing the cores without fighting."""


@dataclass(frozen=True)
class Outcome:
    """One setting.

    Attributes:
        setting: one of ``SETTINGS``.
        policy: what was done, in words.
        ratio, ratio_spread: sum of the parts in turns over the sum of the parts alone: median over the rounds, and
            half the distance of the quartiles.
        own_ratio: the same over the parts alone in the environment of this setting.
        alone_s, turns_s: median seconds of each part; alone in the environment of this setting.
    """

    setting: str
    policy: str
    ratio: float
    ratio_spread: float
    own_ratio: float
    alone_s: Mapping[str, float]
    turns_s: Mapping[str, float]


Rounds = list[list[float]]
"""The samples of one part, round by round."""


@dataclass
class _Samples:
    alone: dict[tuple[str, str], Rounds] = field(default_factory=lambda: defaultdict(list))
    turns: dict[tuple[str, str], Rounds] = field(default_factory=lambda: defaultdict(list))
    policies: dict[str, str] = field(default_factory=dict)


def measure(
    rounds: int,
    calls: int,
    parts: Sequence[str] = PARTS,
    settings: Sequence[str] = SETTINGS,
    progress: Callable[[str], None] = lambda text: None,
    start: Callable[[Sequence[str], Mapping[str, str]], ThreadsProcess] | None = None,
) -> tuple[list[Outcome], dict[str, str]]:
    """Measure all settings.

    Args:
        rounds: in which every process takes its turn.
        calls: of every part in a turn.
        parts: what runs in turns.
        settings: see ``SETTINGS``.
        progress: told what is being done.
        start: a process for parts in an environment; ``ThreadsProcess`` by default.

    Returns:
        The outcomes, and for each part that could not be built the reason.

    Raises:
        RuntimeError: a process died, or fewer than two parts can be built.
    """
    with ExitStack() as stack:
        progress("starting processes")
        begin = lambda names, kind: stack.enter_context((start or ThreadsProcess)(names, environment_of(kind)))  # noqa: E731
        together = {setting: begin(parts, setting) for setting in settings}
        problems: dict[str, str] = next(iter(together.values())).ready["problems"]
        usable = [name for name in parts if name not in problems]
        if len(usable) < 2:
            raise RuntimeError(f"fewer than two parts can be built here: {problems}")
        alone = {kind: {name: begin([name], kind).required() for name in usable} for kind in _ENVIRONMENTS}
        samples = _Samples()
        for number in range(rounds):
            progress(f"round {number + 1} of {rounds}")
            _round(samples, together, alone, calls)
    return [_outcome(setting, samples, usable) for setting in settings], problems


def _round(
    samples: _Samples,
    together: Mapping[str, ThreadsProcess],
    alone: Mapping[str, Mapping[str, ThreadsProcess]],
    calls: int,
) -> None:
    for kind, processes in alone.items():
        for name, process in processes.items():
            samples.alone[kind, name].append(process.ask(calls, policy=False)["seconds"][name])
    for setting, process in together.items():
        answer = process.ask(calls, policy=setting != "no policy")
        samples.policies[setting] = answer["policy"]
        for name, seconds in answer["seconds"].items():
            samples.turns[setting, name].append(seconds)


def _outcome(setting: str, samples: _Samples, parts: Sequence[str]) -> Outcome:
    own = dict.fromkeys(parts, "sleeping" if setting == "sleeping" else "nothing set")
    fastest = {name: min(_ENVIRONMENTS, key=lambda kind: _median(samples.alone[kind, name])) for name in parts}
    ratios = _ratios(setting, samples, fastest)
    quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return Outcome(
        setting=setting,
        policy=samples.policies[setting],
        ratio=statistics.median(ratios),
        ratio_spread=(quartiles[2] - quartiles[0]) / 2,
        own_ratio=statistics.median(_ratios(setting, samples, own)),
        alone_s={name: _median(samples.alone[kind, name]) for name, kind in own.items()},
        turns_s={name: _median(samples.turns[setting, name]) for name in parts},
    )


def _ratios(setting: str, samples: _Samples, reference: Mapping[str, str]) -> list[float]:
    """Round by round, the parts in turns over the parts alone, each in the environment that is named for it."""
    turns = zip(*(samples.turns[setting, name] for name in reference), strict=True)
    alone = zip(*(samples.alone[kind, name] for name, kind in reference.items()), strict=True)
    return [_sum(first) / _sum(second) for first, second in zip(turns, alone, strict=True)]


def _sum(parts: Iterable[Sequence[float]]) -> float:
    return sum(statistics.median(seconds) for seconds in parts)


def _median(rounds: Rounds) -> float:
    return statistics.median(itertools.chain.from_iterable(rounds))


def environment_of(setting: str) -> dict[str, str]:
    """Of the processes of a setting."""
    environment = without_decisions(os.environ)
    if setting == "sleeping":
        make_threads_sleep(environment)
    return environment


class ThreadsProcess:
    """One worker; see ``benchmarks.threads_worker``.

    Args:
        parts: that take turns in it.
        environment: of the process.
    """

    def __init__(self, parts: Sequence[str], environment: Mapping[str, str]) -> None:
        self._parts = parts
        self._process = subprocess.Popen(
            module_command("mixbackend.benchmarks.threads_worker", *parts),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(environment),
        )
        self.ready = self._read()

    def __enter__(self) -> ThreadsProcess:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def required(self) -> ThreadsProcess:
        """Itself, if all of its parts could be built.

        Raises:
            RuntimeError: one could not, with the reason.
        """
        if self.ready["problems"]:
            raise RuntimeError(f"parts that could be built in another process: {self.ready['problems']}")
        return self

    def ask(self, calls: int, policy: bool) -> dict[str, Any]:
        """Let it take its turn."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"calls": calls, "policy": policy}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process of {', '.join(self._parts)} ended with status {self._process.wait()}")
        return json.loads(line)
