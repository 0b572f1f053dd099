"""TensorRT's Python package replaced by a stand-in that has the names of a recorded release; see ``fake/tensorrt``."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parent
RELEASES = sorted(path.stem for path in (HERE / "descriptions").glob("*.json"))
OLDEST, NEWEST = "8.6.1", "11.4.0.106"


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., ModuleType]:
    """Puts the stand-in of a release where ``import tensorrt`` finds it, here and in processes started from here."""

    def install(release: str = OLDEST, fault: str = "") -> ModuleType:
        monkeypatch.setenv("FAKE_TENSORRT", release)
        monkeypatch.setenv("FAKE_TENSORRT_FAULT", fault)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE / "fake"), os.environ.get("PYTHONPATH", "")]))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.syspath_prepend(str(HERE / "fake"))
        monkeypatch.delitem(sys.modules, "tensorrt", raising=False)
        module = importlib.import_module("tensorrt")
        monkeypatch.setitem(sys.modules, "tensorrt", module)
        return module

    return install
