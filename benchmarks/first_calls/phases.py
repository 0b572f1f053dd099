"""Which phase of a first call a sampled stack belongs to.

Place: above ``samples``. Input: samples. Output: seconds by phase.
Method: the innermost frame of a stack that the table knows decides; importing comes first, wherever it happens, and is
told apart by the innermost module that is being imported. What candidates of a comparison compute counts for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mixbackend.host.stack_samples import Frame, Sample

IMPORT_TORCH, IMPORT, AUTO, CAPTURE = "import torch", "import others", "auto()", "capture"
PLANNING, LOWERING = "planning", "lowering"
COMPILER, LOAD, CHECKS, RUN, COMPARING, REST = "g++", "load", "checks", "first run", "comparing", "rest"

PHASES = (IMPORT_TORCH, IMPORT, AUTO, CAPTURE, PLANNING, LOWERING, COMPILER, LOAD, CHECKS, RUN, COMPARING, REST)

_OF_TORCH = ("/torch/", "/sympy/", "/mpmath/", "/numpy/")
"""Folders of what is imported with torch and with Dynamo."""

_TABLE: tuple[tuple[str, str, str], ...] = (
    ("targets/cpp/build.py", "compile_object", COMPILER),
    ("backends/common/compiler.py", "", COMPILER),
    ("targets/cpp/features.py", "", COMPILER),
    ("targets/cpp/build.py", "", LOAD),
    ("mixbackend/storage/", "", LOAD),
    ("execute/verif", "", CHECKS),
    ("execute/checked_call.py", "", CHECKS),
    ("execute/reference.py", "", CHECKS),
    ("execute/check_memory.py", "", CHECKS),
    ("execute/kept_inputs.py", "", CHECKS),
    ("partitioner/", "", PLANNING),
    ("mixbackend/plan/", "", PLANNING),
    ("mixbackend/select/", "", COMPARING),
    ("mixbackend/cost/", "", PLANNING),
    ("compile/propose.py", "", PLANNING),
    ("mixbackend/registry.py", "", AUTO),
    ("mixbackend/compile/open_environment.py", "", AUTO),
    ("execute/compile_cache.py", "", LOWERING),
    ("mixbackend/compile/build.py", "", LOWERING),
    ("<mixbackend", "", RUN),
    ("mixbackend/graph/", "", CAPTURE),
    ("mixbackend/api.py", "", AUTO),
    ("mixbackend/__init__.py", "", AUTO),
    ("torch/_inductor/", "", LOWERING),
    ("torch/_dynamo/", "", CAPTURE),
    ("torch/_functorch/", "", CAPTURE),
    ("torch/__init__.py", "compile", CAPTURE),
)
"""Part of a file's path, a function in it or any, and the phase."""


def seconds_by_phase(samples: Iterable[Sample]) -> dict[str, float]:
    """Seconds of every phase, those without any too."""
    seconds = dict.fromkeys(PHASES, 0.0)
    for sample in samples:
        seconds[phase_of(sample.stack)] += sample.seconds
    return seconds


def phase_of(stack: Sequence[Frame]) -> str:
    """The phase that a stack belongs to."""
    if any(frame.file.startswith("<frozen importlib") for frame in stack):
        module = next((frame.file for frame in reversed(stack) if frame.function == "<module>"), "")
        return IMPORT_TORCH if any(folder in module for folder in _OF_TORCH) else IMPORT
    found = next((phase for frame in reversed(stack) if (phase := _phase_of(frame))), REST)
    if found in (RUN, CHECKS, REST) and any("mixbackend/select/" in frame.file for frame in stack):
        return COMPARING
    return found


def _phase_of(frame: Frame) -> str:
    """The phase of the first line of the table that fits, ``""`` if none does."""
    return next((phase for file, name, phase in _TABLE if file in frame.file and name in ("", frame.function)), "")
