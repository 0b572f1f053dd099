"""Test suites through pytest: the clients of this repository, and TorchCTS's compiler suite.

Place: under the command. Output: a JUnit file per suite and backend in a folder, which ``page`` reads.
TorchCTS runs with ``auto()`` as the default backend of ``torch.compile``, and with the control. Its own command
collects every suite first, which takes minutes: its tests are handed to pytest as they are.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

CONTROL = "aot_eager"
SUITES: Mapping[str, tuple[str, ...]] = {"clients": ("auto",), "torchcts": ("auto", CONTROL)}
"""The backends that a suite is run with."""

_PLUGIN = "mixbackend.benchmarks.conformance.default_backend"
_VARIABLE = "MIXBACKEND_CONFORMANCE"


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """What a JUnit file says.

    Attributes:
        passed, seconds: their number, and the time of all.
        failed, skipped: name and reason.
    """

    passed: tuple[str, ...]
    failed: tuple[tuple[str, str], ...]
    skipped: tuple[tuple[str, str], ...]
    seconds: float


def run(name: str, folder: Path) -> int:
    """Run a suite with all of its backends; 1 if ours fails where the control does not."""
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for backend in SUITES[name]:
        path = junit_path(folder, name, backend)
        path.unlink(missing_ok=True)
        if name == "clients":
            _pytest(["tests/clients"], path, Path.cwd(), {})
        else:
            _torchcts(path, folder, backend)
        found[backend] = read_junit(path) if path.exists() else None
        print(f"{name} {backend}: {_line(found[backend])}")
    ours, control = found["auto"], found.get(CONTROL)
    if ours is None:
        return 1
    known = {test for test, _ in control.failed} if control is not None else set()
    return int(any(test not in known for test, _ in ours.failed))


def junit_path(folder: Path, name: str, backend: str) -> Path:
    """Where a suite's results are."""
    return folder / f"{name}-{backend}.xml"


def read_junit(path: Path) -> SuiteResult:
    """What pytest wrote."""
    passed: list[str] = []
    failed: list[tuple[str, str]] = []
    skipped: list[tuple[str, str]] = []
    seconds = 0.0
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        if not case.get("name"):
            continue  # a run that was interrupted ends with one
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        seconds += float(case.get("time", 0.0))
        verdict = next((part for part in case if part.tag in ("failure", "error", "skipped")), None)
        if verdict is None:
            passed.append(name)
        else:
            lines = (verdict.get("message") or "").strip().splitlines() or [""]
            (skipped if verdict.tag == "skipped" else failed).append((name, lines[0][:200]))
    return SuiteResult(tuple(passed), tuple(failed), tuple(skipped), seconds)


def _torchcts(path: Path, folder: Path, backend: str) -> None:
    """The compiler suite; its manifest says that the device can do everything, so that nothing is filtered out."""
    found = importlib.util.find_spec("torchcts")
    if found is None or found.origin is None:
        raise SystemExit("torchcts is not installed: .ci/conformance makes an environment that has it")
    package = Path(found.origin).parent
    place = folder / "torchcts"
    place.mkdir(exist_ok=True)
    shutil.copy(package / "templates" / "manifest.complete.py", place / "manifest.py")
    arguments = [str(package / "compiler"), "--device", "cpu", "--results-dir", str(place / backend)]
    _pytest(arguments, path, place, {"PYTEST_PLUGINS": _PLUGIN, _VARIABLE: backend})


def _pytest(arguments: list[str], path: Path, place: Path, variables: Mapping[str, str]) -> None:
    command = [sys.executable, "-m", "pytest", *arguments, "-p", "no:randomly", "--junitxml", str(path)]
    # Its exit status says no more than the file does.
    subprocess.run(command, cwd=place, env={**os.environ, **variables}, check=False)


def _line(result: SuiteResult | None) -> str:
    if result is None:
        return "pytest wrote nothing"
    return f"{len(result.passed)} passed, {len(result.failed)} failed, {len(result.skipped)} skipped"
