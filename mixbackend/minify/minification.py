"""Minify: from a model, or a dumped graph, to the smallest region that a backend fails on, as a script.

Place: behind ``mixbackend.minify`` and the command. Input: a model with its arguments, or a dump. Output: ``Minified``.
Steps: run the model in eager as it is placed, and ask about each region of it in a process of its backend; take the
first that fails, or the one that loses most against its estimate; leave out ops; shrink sizes; write a script; run it.
Invariants: no backend runs in this process. Regions with equal code are one finding.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mixbackend import registry
from mixbackend.certify.source import Source, source_of
from mixbackend.compile.replay import make_inputs
from mixbackend.configuration import Config, load_config
from mixbackend.contracts import MixbackendError
from mixbackend.contracts.region_text import read_region_text
from mixbackend.contracts.torch_compat import backward_compiled_at_once
from mixbackend.graph.identity import Captured
from mixbackend.minify.inquiry import Inquiry
from mixbackend.minify.piece import Piece
from mixbackend.minify.recording import Recorded, RecordingMixture
from mixbackend.minify.reduction import fewest_ops, slowest_ops
from mixbackend.minify.result import Faulty, Minified
from mixbackend.minify.script import script_of
from mixbackend.minify.shrink import shrunk
from mixbackend.minify.verdict import Slowness, Verdict
from mixbackend.plan.choice import Choice

Progress = Callable[[str], None]

TIMEOUT_S = 120.0
LIMIT_S = 1800.0
SLOW = 3.0
_LEAST_CALL_S = 10e-6
"""What any call may take, whatever estimates say."""
_HANGS_S, _HANGING_SHARE = 2.0, 0.1
"""What has hung is not waited for as long again."""
_SCRIPT_S = 300.0
_CLEARLY_SLOWER = 1.5
"""Than eager: then eager's time is what a slow region is held against, which every machine can measure."""
_GRAPH, _CONFIG = "graph.region", "config.json"


def minify(
    model: Callable[..., Any] | str | Path,
    *args: Any,
    config: str | Path | Mapping[str, Any] | Config | None = None,
    timeout_s: float = TIMEOUT_S,
    limit_s: float = LIMIT_S,
    slow: float = SLOW,
    progress: Progress = lambda text: None,
    **kwargs: Any,
) -> Minified:
    """Find the region that a backend fails on, and make it small.

    Args:
        model: module or function; or a folder that ``MIXBACKEND_DUMP`` wrote, of one graph or of several.
        args, kwargs: its arguments; as in a normal call, gradients are traced if grad mode is on, and a backward runs.
        config: see ``auto``; of a dump, instead of the one that it was written with.
        timeout_s: for compiling a region, and for a call; what takes longer hangs.
        limit_s: after so many seconds the smallest region so far is taken.
        slow: a region that takes so many times its estimate is slow, where nothing else is wrong.
        progress: told what is going on.

    Raises:
        MixbackendError: it is no dump, or another process cannot load a backend.
    """
    search = _Search(timeout_s, limit_s, slow, progress)
    try:
        if isinstance(model, (str, Path)):
            if args or kwargs:
                raise MixbackendError(what="a dump takes no arguments", hint="its inputs are made from its text")
            search.run_dump(Path(model), config)
        else:
            search.run_model(model, args, kwargs, load_config(config))
        return search.result()
    finally:
        search.close()


class _Search:
    """One minification."""

    def __init__(self, timeout_s: float, limit_s: float, slow: float, progress: Progress) -> None:
        self._begin = time.monotonic()
        self._end, self._slow, self._progress = self._begin + limit_s, slow, progress
        self._timeout_s = timeout_s
        self._inquiry = Inquiry(_source, timeout_s)
        self._known: dict[tuple[str, str], Faulty | None] = {}
        self._first: tuple[Recorded, Verdict] | None = None
        self._slowest: tuple[Recorded, Verdict, Slowness] | None = None
        self._examined = 0
        self._unknown: list[str] = []

    def close(self) -> None:
        """End the processes."""
        self._inquiry.close()

    # --- which region ------------------------------------------------------------------------------------------------

    def run_model(
        self, model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], config: Config
    ) -> None:
        """Examine all regions of a model, and of its backward."""
        mixture = RecordingMixture(config, self._examine)
        with backward_compiled_at_once():
            results = torch.compile(model, backend=mixture)(*args, **kwargs)
        _run_backward(model, (args, kwargs), results)
        self._unknown += mixture.left_out

    def run_dump(self, folder: Path, config: str | Path | Mapping[str, Any] | Config | None) -> None:
        """Examine all regions of dumped graphs, with values that a seed gives."""
        files = sorted([*folder.glob(_GRAPH), *folder.glob(f"*/{_GRAPH}")])
        if not files:
            what = f"{folder} has no {_GRAPH}, nor has a folder in it"
            raise MixbackendError(what=what, hint="give a folder that MIXBACKEND_DUMP=FOLDER wrote")
        for file in files:
            region = read_region_text(file.read_text(encoding="utf-8"), file.parent.name)
            given = config if config is not None else file.with_name(_CONFIG)
            mixture = RecordingMixture(load_config(given), self._examine)
            run = mixture.of_dump(Captured.of_region(region, file.parent.name))
            with torch.no_grad():
                run(make_inputs(region))
            self._unknown += mixture.left_out

    def _examine(self, recorded: Recorded) -> None:
        piece = recorded.piece
        key = (recorded.backend, piece.region.key)
        known = self._known.get(key)
        if known is not None:
            self._known[key] = known.again()
            return
        self._examined += 1
        self._progress(f"{self._examined} regions examined, now {piece.region.id} on {recorded.backend}")
        verdict = self._inquiry.verdict(piece, recorded.backend, timed=True, judged=False)
        if verdict.kind == "unknown":
            self._unknown.append(f"{piece.region.id} on {recorded.backend}: {verdict.text}")
        self._known[key] = None
        if verdict.faulty:
            self._known[key] = Faulty.of(piece, recorded.backend, verdict, recorded.estimated_s)
            self._first = self._first or (recorded, verdict)
        elif verdict.seconds is not None:
            self._time(recorded, verdict)

    def _time(self, recorded: Recorded, verdict: Verdict) -> None:
        """Keep it if it loses more against its estimate than any other."""
        piece, eager_s = recorded.piece, verdict.eager_s
        if verdict.seconds is None or verdict.seconds <= self._slow * recorded.estimated_s:
            return
        expected_s = _expected(recorded, piece, verdict)
        slowness = Slowness(self._slow, expected_s, "estimate", 0.0)
        loss = slowness.lost(verdict, expected_s)
        if loss is None or (self._slowest is not None and self._slowest[2].loss_s >= loss):
            return
        slowness = replace(slowness, loss_s=loss)
        if eager_s is not None and verdict.seconds > _CLEARLY_SLOWER * eager_s:
            factor = min(self._slow, (verdict.seconds / eager_s) ** 0.5)
            slowness = Slowness(factor, eager_s, "eager", loss)
        self._slowest = recorded, replace(verdict, kind="slow", text=_slow_text(verdict, slowness)), slowness

    # --- how small ---------------------------------------------------------------------------------------------------

    def result(self) -> Minified:
        """The first region that fails, or the slowest one, made small."""
        faults = tuple(fault for fault in self._known.values() if fault is not None)
        slowness = None
        if self._first is not None:
            recorded, verdict = self._first
        elif self._slowest is not None and self._is_slow_again(*self._slowest):
            recorded, verdict, slowness = self._slowest
            faults = (Faulty.of(recorded.piece, recorded.backend, verdict, recorded.estimated_s),)
        else:
            return self._minified((), None, None, "", False, None)
        small, seen, slowness = self._reduced(recorded, verdict, slowness)
        estimated_s = slowness.expected_s if slowness is not None else 0.0
        smallest = Faulty.of(small, recorded.backend, seen, estimated_s)
        script = script_of(small, seen, recorded.backend, _source(recorded.backend), slowness)
        self._progress("running the script")
        return self._minified(faults, smallest, small, script, _shows(script), slowness)

    def _is_slow_again(self, recorded: Recorded, verdict: Verdict, slowness: Slowness) -> bool:
        """Whether it is slow at another time, too: something else may have had the machine."""
        seen = self._inquiry.verdict(recorded.piece, recorded.backend, timed=True, judged=False)
        expected_s = seen.eager_s if slowness.against == "eager" else _expected(recorded, recorded.piece, seen)
        return expected_s is not None and slowness.lost(seen, expected_s) is not None

    def _minified(self, faults: Any, smallest: Any, piece: Any, script: str, shows: bool, slowness: Any) -> Minified:
        now = time.monotonic()
        facts = self._examined, tuple(self._unknown), self._inquiry.asked, now - self._begin, self._over
        return Minified(faults, smallest, piece, script, shows, slowness, *facts)

    def _reduced(
        self, recorded: Recorded, verdict: Verdict, slowness: Slowness | None
    ) -> tuple[Piece, Verdict, Slowness | None]:
        """The smallest piece that fails alike, with its own verdict."""
        if verdict.kind == "hangs":
            self._inquiry.limits[verdict.at] = max(_HANGS_S, _HANGING_SHARE * self._timeout_s)
        last: dict[Piece, tuple[Verdict, Slowness | None]] = {recorded.piece: (verdict, slowness)}

        def asked(piece: Piece) -> Verdict:
            self._progress(f"{self._inquiry.asked} tries, now {piece.ops} ops")
            return self._inquiry.verdict(piece, recorded.backend, timed=slowness is not None)

        def fails(piece: Piece) -> bool:
            if slowness is not None:
                return loss_of(piece) is not None
            if self._over:
                return False
            last[piece] = (seen := asked(piece)), None
            return seen.like(verdict)

        def loss_of(piece: Piece) -> float | None:
            assert slowness is not None, "nothing else is slow"
            seen = Verdict("unknown") if self._over else asked(piece)
            expected_s = seen.eager_s if slowness.against == "eager" else _expected(recorded, piece, seen)
            loss = None if expected_s is None else slowness.lost(seen, expected_s)
            if loss is not None and expected_s is not None:
                now = replace(slowness, expected_s=expected_s, loss_s=loss)
                last[piece] = replace(seen, kind="slow", text=_slow_text(seen, now)), now
            return loss

        small = recorded.piece if slowness is None else slowest_ops(recorded.piece, loss_of)
        small = shrunk(fewest_ops(small, fails), fails)
        # With smaller sizes fewer ops may do.
        small = fewest_ops(small, fails) if small.ops > 1 else small
        return (small, *last[small])

    @property
    def _over(self) -> bool:
        return time.monotonic() >= self._end


def _slow_text(verdict: Verdict, slowness: Slowness) -> str:
    eager = "" if verdict.eager_s is None else f", eager {verdict.eager_s * 1e3:.3g} ms"
    estimate = f", estimated {slowness.expected_s * 1e3:.3g} ms" if slowness.against == "estimate" else ""
    return f"{(verdict.seconds or 0.0) * 1e3:.3g} ms a call{estimate}{eager}"


def _expected(recorded: Recorded, piece: Piece, verdict: Verdict) -> float:
    """What a piece should take on its backend: its estimate, and as many times as long as eager takes more than eager's
    own, which is the machine's load, or what estimates are off on it."""
    planner = recorded.environment.planner
    names = (recorded.backend, recorded.environment.reference.name)
    mine, eager = (planner.place(piece.graph, choice=Choice(single=name)).estimated_s for name in names)
    times = 1.0 if verdict.eager_s is None or not eager else max(1.0, verdict.eager_s / eager)
    return max(mine * times, _LEAST_CALL_S)


def _source(name: str) -> Source:
    """How another process finds a backend of this one.

    Raises:
        MixbackendError: it cannot.
    """
    backend, info = registry.asked(name)
    if backend is None or info.origin != registry.IN_PROCESS:
        return Source("name", name)
    source = source_of(backend)
    if source is None:
        raise MixbackendError(
            what=f"backend {name!r} is an object that cannot be carried to another process",
            hint="define its class in a module that can be imported, with attributes that JSON can hold",
        )
    return source


def _run_backward(model: Any, given: Any, results: Any) -> None:
    """A backward with random gradients of all results that have one; gradients that leaves have stay as they are."""
    generator = torch.Generator().manual_seed(0)
    wanted = [value for value in _tensors(results) if value.requires_grad]
    gradients = [torch.randn(value.shape, generator=generator).to(value.device, value.dtype) for value in wanted]
    weights = list(model.parameters()) if isinstance(model, torch.nn.Module) else []
    leaves = [value for value in (*weights, *_tensors(given)) if value.requires_grad]
    if wanted and leaves:
        torch.autograd.grad(wanted, leaves, gradients, allow_unused=True)
    elif wanted:
        torch.autograd.backward(wanted, gradients)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Those in nested results."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list, Mapping)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(item)


def _shows(script: str) -> bool:
    """Whether a script, run by itself, shows the failure."""
    with tempfile.TemporaryDirectory(prefix="mixbackend-minify-") as folder:
        path = Path(folder) / "smallest.py"
        path.write_text(script, encoding="utf-8")
        command = [sys.executable, str(path)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        try:
            done = subprocess.run(command, capture_output=True, timeout=_SCRIPT_S, env=environment)
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 1 and b"Traceback" not in done.stderr
