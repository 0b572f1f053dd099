"""The steps of ``examples/container``: prepared with a compiler, run without one, a home, or a disk to write."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "container"
READ_ONLY = """
mount --make-rprivate / && mount -o remount,bind,ro / && mount -t tmpfs -o noexec none /tmp && exec "$@"
"""
NAMESPACE = ["unshare", "--map-root-user", "--mount", "sh", "-c", READ_ONLY, "sh"]


def can_be_read_only() -> bool:
    try:
        return subprocess.run([*NAMESPACE, "true"], capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def run(command: list[object], environment: Mapping[str, str]) -> str:
    done = subprocess.run(list(map(str, command)), env=dict(environment), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def place() -> Iterator[Path]:
    """Not below ``/tmp``, which is another one at run time."""
    found = Path(subprocess.check_output(["mktemp", "-d", "-p", "/var/tmp"], text=True).strip())
    yield found
    shutil.rmtree(found)


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not can_be_read_only(), reason="this user cannot make a namespace with read-only mounts")
def test_an_image_without_compiler_home_and_disk_runs_and_says_once_what_it_lacks(place: Path) -> None:
    paths = os.pathsep.join(filter(None, [str(EXAMPLE), *sys.path]))
    given = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": paths, "MIXBACKEND_CACHE": str(place / "cache")}
    package, archive = place / "model.mix", place / "cache.zip"
    run(["sh", EXAMPLE / "prepare.sh", package, archive], {**given, "CALIBRATE_S": "1"})
    assert package.exists() and archive.exists()

    shutil.rmtree(place / "cache")
    (place / "bin").mkdir()
    bare = {**given, "PATH": str(place / "bin"), "HOME": "/nonexistent"}
    bare.pop("CXX", None)
    told = run([sys.executable, "-m", "mixbackend", "cache", "import", archive], bare)
    assert "backend codegen is not here" in told
    run(["chmod", "-R", "a+rX,go-w", place], given)

    command = [*NAMESPACE, "env", f"PATH={bare['PATH']}", sys.executable, EXAMPLE / "serve.py", package]
    told = run(command, {**bare, "PATH": os.environ["PATH"]})
    report = told[told.index("torch.compile: first result") :]
    assert report.count(f"{place / 'cache'} is only read") == 1
    assert "package: first result" in told and "codegen, inductor: no C++ compiler" in report
    assert "corrupt" not in told and "unwritable" not in told and "Traceback" not in told
