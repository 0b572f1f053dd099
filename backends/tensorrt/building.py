"""Build engines, each in a process of its own.

Place: asked by ``compilation``; the process runs ``worker``. Input: a prepared region, profiles, settings, where its
weights' values come from. Output: the serialised engine and which of its weights can be given anew.
Invariants: a build that crashes, hangs or is refused is an exception here and nothing else; its process ends with this
one; the timings of tactics that it measured are kept for the next build on the same GPU with the same release.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from mixbackend.backends.common.private_folder import private_cache_folder
from mixbackend.backends.tensorrt.api import Settings
from mixbackend.backends.tensorrt.limits import limits
from mixbackend.backends.tensorrt.model import WEIGHTS, Prepared, Weight
from mixbackend.backends.tensorrt.profiles import Profile

logger = logging.getLogger("mixbackend")

MODEL, REQUEST, ENGINE, RESULT = "model.onnx", "request.json", "engine.plan", "result.json"
"""Files of a build: two that go in beside the weights, two that come out."""
_WORKER = "mixbackend.backends.tensorrt.worker"
_TAIL_CHARACTERS = 1500

Values = Callable[[Weight], torch.Tensor]


class BuildError(RuntimeError):
    """An engine could not be built; says why, with what TensorRT said."""


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


def build(prepared: Prepared, profiles: Sequence[Profile], settings: Settings, values: Values, key: str) -> Built:
    """Build an engine in a process of its own.

    Args:
        prepared: what to build.
        profiles: of sizes, in the order in which they are tried.
        settings: see ``Settings``.
        values: gives the values of a weight.
        key: of everything that timings of tactics depend on.

    Raises:
        BuildError: TensorRT refused, the process died, or time ran out.
    """
    allowed = limits()
    with _turns(allowed.builds), tempfile.TemporaryDirectory(prefix="mixbackend-tensorrt-") as name:
        folder = Path(name)
        _write(folder, prepared, profiles, settings, values, key)
        start = time.monotonic()
        _run(folder, allowed.seconds)
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


# --- the process -----------------------------------------------------------------------------------------------------


def _run(folder: Path, seconds: float) -> None:
    with open(folder / "errors.txt", "w+", encoding="utf-8", errors="replace") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", _WORKER, str(folder)],
            stdin=subprocess.PIPE,  # closed when this process ends, however it ends: the worker then ends, too
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        progress = _Progress(process)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise BuildError(
                f"no engine within {seconds:g} s, at last in: {progress.last or 'the start'} "
                "(MIXBACKEND_TENSORRT_SECONDS allows more, MIXBACKEND_TENSORRT_LEVEL asks for less)"
            ) from None
        finally:
            _end(process)
        if code == 0 and (folder / RESULT).exists():
            return
        errors.seek(0)
        cause = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        raise BuildError(f"the process that builds ended with {cause}: {errors.read()[-_TAIL_CHARACTERS:].strip()}")


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


class _Progress:
    """Reads what a worker is at, line by line, and hands it to the log."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.last = ""
        threading.Thread(target=self._read, args=(process.stdout or (),), daemon=True).start()

    def _read(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.last = line.strip()
            logger.info("tensorrt: %s", self.last)


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
