"""Seconds of whole processes that make one first call, peer by peer, with empty caches and with filled ones.

Place: above ``worker``. Input: models and a phase. Output: ``FirstCalls``, one per model.
Method: in every round each peer has a fresh folder for all caches; a first process fills it (``cold``), a second one
finds it (``second``). Peers take turns, in another order every round; figures are medians over the rounds. One more
pair of processes of ours has its stacks sampled, for the phases.
Our modules are compiled to bytecode beforehand, as installing a package does; torch's are.
Units: seconds. ``process_s`` is from before the process is started until it has ended: imports, the model's own making
and leaving are in it, for every peer alike.
"""

from __future__ import annotations

import compileall
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from mixbackend.backends.common.python_process import module_command
from mixbackend.benchmarks.first_calls.worker import MIXTURE, MLP, Order
from mixbackend.benchmarks.one_model.accuracy import Phase

DEFAULT_MODELS = (MLP, "BERT_pytorch", "GPT2ForSequenceClassification", "resnet18", "mobilenet_v2", "pytorch_unet")
"""Four linear layers; an encoder, a decoder, convolutional networks old and new, and a segmenter of the suite."""

BASELINE = "aot_eager"
"""Captures as we do, and compiles nothing."""

PEERS = (BASELINE, "inductor", MIXTURE)
STATES = ("cold", "second")

_WORKER = "mixbackend.benchmarks.first_calls.worker"
_TAIL_CHARACTERS = 400
_PACKAGES = ("mixbackend", "mixbackend.contracts", "mixbackend.partitioner", "mixbackend.backends")

Figures = Mapping[str, Mapping[str, float]]
"""By ``peer state``: seconds of ``process_s`` and of the steps that ``worker`` tells."""


@dataclass(frozen=True)
class FirstCalls:
    """One model.

    Attributes:
        model, phase: what was called.
        seconds: medians over the rounds.
        rounds: ``process_s`` of every round, by ``peer state``.
        phases: of our own processes, by state: sampled seconds by phase.
        problems: by ``peer state``: why there are no figures.
    """

    model: str
    phase: str
    seconds: Figures
    rounds: Mapping[str, Sequence[float]]
    phases: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)

    def beyond(self, peer: str, state: str) -> float | None:
        """Seconds of a peer's process beyond those of the baseline."""
        mine, base = self.seconds.get(f"{peer} {state}"), self.seconds.get(f"{BASELINE} {state}")
        return None if mine is None or base is None else mine["process_s"] - base["process_s"]


@dataclass(frozen=True)
class Options:
    """How everything is measured.

    Attributes:
        rounds: in which each peer takes its turn.
        backends: that the mixture may use; all usable ones if empty.
        timeout_s: for one process.
        flame_graphs: folder for collapsed stacks of our own processes, ``None`` for none.
    """

    rounds: int = 3
    backends: tuple[str, ...] = ()
    timeout_s: float = 600.0
    flame_graphs: Path | None = None


def measure(
    models: Sequence[str], phase: Phase, options: Options, progress: Callable[[str], None] = lambda text: None
) -> list[FirstCalls]:
    """Measure every model; what fails becomes a problem of its row."""
    _compile_to_bytecode()
    return [_Model(model, phase, options, progress).measured() for model in models]


class _Model:
    """The processes of one model."""

    def __init__(self, model: str, phase: Phase, options: Options, progress: Callable[[str], None]) -> None:
        self._model, self._phase, self._options, self._progress = model, phase, options, progress
        self._answers: dict[str, list[dict[str, float]]] = {}
        self._problems: dict[str, str] = {}

    def measured(self) -> FirstCalls:
        for number in range(self._options.rounds):
            turn = number % len(PEERS)
            for peer in (*PEERS[turn:], *PEERS[:turn]):
                self._pair(peer, f"round {number + 1} of {self._options.rounds}")
        phases = self._phases()
        seconds = {
            name: {key: statistics.median(answer[key] for answer in answers) for key in answers[0]}
            for name, answers in self._answers.items()
        }
        rounds = {name: [answer["process_s"] for answer in answers] for name, answers in self._answers.items()}
        return FirstCalls(self._model, self._phase, seconds, rounds, phases, self._problems)

    def _pair(self, peer: str, where: str) -> None:
        """A process with empty caches, and one after it."""
        with _caches() as folder:
            for state in STATES:
                self._progress(f"{self._model}, {where}: {peer} {state}")
                answer = self._ask(f"{peer} {state}", self._order(peer), Path(folder))
                if answer is None:
                    return
                self._answers.setdefault(f"{peer} {state}", []).append(answer["seconds"])

    def _phases(self) -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = {}
        with _caches() as folder:
            for state in STATES:
                self._progress(f"{self._model}: phases, {state}")
                file, target = "", self._options.flame_graphs
                if target is not None:
                    target.mkdir(parents=True, exist_ok=True)
                    file = str((target / f"{self._model}-{self._phase}-{state}.txt").resolve())
                answer = self._ask(f"phases {state}", self._order(MIXTURE, sampled=True, stacks=file), Path(folder))
                if answer is not None:
                    found[state] = answer["phases"]
        return found

    def _order(self, peer: str, sampled: bool = False, stacks: str = "") -> Order:
        return Order(self._model, self._phase, peer, self._options.backends, sampled, stacks)

    def _ask(self, name: str, order: Order, caches: Path) -> dict[str, Any] | None:
        folders = {
            "XDG_CACHE_HOME": str(caches),
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
            "TRITON_CACHE_DIR": str(caches / "triton"),
        }
        begin = time.perf_counter()
        try:
            done = subprocess.run(
                module_command(_WORKER, order.to_json()),
                capture_output=True,
                text=True,
                timeout=self._options.timeout_s,
                env={**os.environ, **folders},
            )
        except subprocess.TimeoutExpired:
            self._problems[name] = f"no answer within {self._options.timeout_s:g} s"
            return None
        taken = time.perf_counter() - begin
        if done.returncode != 0 or not done.stdout.strip():
            self._problems[name] = f"exit code {done.returncode}: {done.stderr.strip()[-_TAIL_CHARACTERS:]}"
            return None
        answer: dict[str, Any] = json.loads(done.stdout)
        answer["seconds"]["process_s"] = taken
        return answer


def _compile_to_bytecode() -> None:
    """Where Python writes no bytecode by itself, a source tree is compiled in every process: 0.3 s of it."""
    for name in _PACKAGES:
        for folder in import_module(name).__path__:
            compileall.compile_dir(folder, quiet=2)


def _caches() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="mixbackend-first-calls-", ignore_cleanup_errors=True)
