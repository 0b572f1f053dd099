"""Build engines in other processes.

Place: asked by ``plan``; ``builders`` holds the processes. Input: a prepared region, profiles, settings, where its
weights' values come from. Output: the serialised engine and which of its weights can be given anew.
Invariants: a build that crashes, hangs or is refused is an exception here and nothing else; the timings of tactics that
it measured are kept for the next build on the same GPU with the same release.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from mixbackend.backends.common.private_folder import private_cache_folder
from mixbackend.backends.tensorrt.api import Settings
from mixbackend.backends.tensorrt.builders import BuildError, builder
from mixbackend.backends.tensorrt.limits import limits
from mixbackend.backends.tensorrt.model import WEIGHTS, Prepared, Weight
from mixbackend.backends.tensorrt.profiles import Profile

MODEL, REQUEST, ENGINE, RESULT = "model.onnx", "request.json", "engine.plan", "result.json"
"""Files of a build: two that go in beside the weights, two that come out."""
WORKER = "mixbackend.backends.tensorrt.worker"

Values = Callable[[Weight], torch.Tensor]
RunBuild = Callable[[Path, float], None]
"""Builds what a folder asks for, within so many seconds."""


def in_another_process(folder: Path, seconds: float, worker: str = WORKER) -> None:
    """Build what a folder asks for in a process that runs a module.

    Raises:
        BuildError: the process died, or time ran out.
    """
    with builder(worker) as process:
        process.build(folder, seconds)


@dataclass(frozen=True, slots=True)
class Built:
    """An engine.

    Attributes:
        engine: serialised.
        refittable: names of the weights that can be given anew.
        seconds: that building took, waiting for a turn left out.
    """

    engine: bytes
    refittable: frozenset[str]
    seconds: float


def build(
    prepared: Prepared,
    profiles: Sequence[Profile],
    settings: Settings,
    values: Values,
    key: str,
    run: RunBuild = in_another_process,
) -> Built:
    """Build an engine.

    Args:
        prepared: what to build.
        profiles: of sizes, in the order in which they are tried.
        settings: see ``Settings``.
        values: gives the values of a weight.
        key: of everything that timings of tactics depend on.
        run: builds.

    Raises:
        BuildError: TensorRT refused, the process died, or time ran out.
    """
    allowed = limits()
    with _turns(allowed.builds), tempfile.TemporaryDirectory(prefix="mixbackend-tensorrt-") as name:
        folder = Path(name)
        _write(folder, prepared, profiles, settings, values, key)
        start = time.monotonic()
        run(folder, allowed.seconds)
        result = json.loads((folder / RESULT).read_text())
        if result["error"]:
            raise BuildError(f"TensorRT builds no engine: {result['error']}")
        return Built((folder / ENGINE).read_bytes(), frozenset(result["refittable"]), time.monotonic() - start)


def placeholder(weight: Weight) -> torch.Tensor:
    """Values to build with where the true ones are given later: small, all different, and positive where a vector may
    be a variance."""
    generator = torch.Generator().manual_seed(weight.offset)
    values = torch.rand(weight.shape, generator=generator) * 0.1 + 0.01
    return (values - 0.06 if len(weight.shape) > 1 else values).to(weight.dtype)


def _write(
    folder: Path, prepared: Prepared, profiles: Sequence[Profile], settings: Settings, values: Values, key: str
) -> None:
    (folder / MODEL).write_bytes(prepared.model)
    with open(folder / WEIGHTS, "wb") as file:
        for weight in prepared.weights:
            file.seek(weight.offset)
            file.write(values(weight).reshape(-1).view(torch.uint8).numpy().data)
    request = {
        "settings": asdict(settings),
        "profiles": [profile.shapes for profile in profiles],
        "timings": str(timings_file(key)),
    }
    (folder / REQUEST).write_text(json.dumps(request))


def timings_file(key: str) -> Path:
    """Where timings of tactics are kept."""
    digest = hashlib.sha256(key.encode()).hexdigest()[:32]
    return private_cache_folder("tensorrt") / f"timings-{digest}.bin"


class _Turns:
    """So many builds at once as the environment allows now."""

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._running = 0

    @contextmanager
    def __call__(self, most: int) -> Any:
        with self._free:
            self._free.wait_for(lambda: self._running < most)
            self._running += 1
        try:
            yield
        finally:
            with self._free:
                self._running -= 1
                self._free.notify_all()


_turns = _Turns()
