"""``torch.compiler.save_cache_artifacts`` carries our caches to a machine that has none."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.compiler._cache import CacheArtifactManager

from mixbackend.backends.codegen import CodegenBackend
from mixbackend.compile.mixture import Mixture
from mixbackend.compile.saved_caches import take_part_in_saved_caches
from mixbackend.configuration import load_config
from mixbackend.contracts.torch_compat import add_to_saved_caches
from mixbackend.storage import ArtifactStore

WORKER = Path(__file__).with_name("saved_caches_worker.py")
CONFIG = {"backends": ["codegen", "onednn", "eager"], "select": "off"}

pytestmark = pytest.mark.skipif(not CodegenBackend().availability().available, reason="there is no C++ compiler here")


def test_a_machine_without_caches_compiles_nothing(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    for step in ("save", "load"):
        folders = {"XDG_CACHE_HOME": str(tmp_path / "ours"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "torch")}
        (tmp_path / "ours").mkdir(mode=0o700)
        command = [sys.executable, str(WORKER), step, str(tmp_path / "saved"), json.dumps(CONFIG)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=280, env={**os.environ, **folders})
        assert done.returncode == 0, done.stderr[-3000:]
        assert "saved cache" not in done.stderr
        told.append(json.loads(done.stdout))
        for folder in folders.values():
            shutil.rmtree(folder)
    saved, loaded = told
    assert saved["kinds"] == loaded["kinds"] == ["aot_autograd", "mixbackend"]
    assert saved["cached"] and not any(saved["cached"]) and all(loaded["cached"])
    assert (saved["hits"], loaded["hits"]) == (0, 1)


@pytest.fixture
def compiled(tmp_path: Path) -> Callable[[Callable[[torch.Tensor], torch.Tensor]], torch.Tensor]:
    """Compiles a function with a cache of its own, and calls it."""
    take_part_in_saved_caches()
    mixture = Mixture(load_config({**CONFIG, "cache": {"dir": str(tmp_path / "cache")}}))
    (tmp_path / "cache").mkdir(mode=0o700)

    def call(function: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        with torch.no_grad():
            return torch.compile(function, backend=mixture)(torch.linspace(-1, 1, 35).view(5, 7))

    return call


def artifacts_of(folder: Path) -> set[str]:
    return {artifact.key for artifact in ArtifactStore.open(folder).artifacts()}


def test_what_came_later_is_saved_later(tmp_path: Path, compiled: Callable[..., torch.Tensor]) -> None:
    counts = []
    with CacheArtifactManager.with_fresh_cache():
        for function in (lambda x: x.sin().exp() + 1, lambda x: x.cos().sum(0) * 2):
            compiled(function)
            saved = torch.compiler.save_cache_artifacts()
            assert saved is not None
            counts.append(len(saved[1].mixbackend_artifacts))  # type: ignore[attr-defined]
    here = artifacts_of(tmp_path / "cache")
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").mkdir(mode=0o700)
    torch.compiler.load_cache_artifacts(saved[0])
    assert counts == [1, 2] and artifacts_of(tmp_path / "cache") == here and len(here) == 2


@pytest.mark.parametrize(("max_gb", "left"), [(10, 2), (1e-9, 0)])
def test_the_bound_of_who_saves_holds_where_it_is_loaded(
    max_gb: float, left: int, tmp_path: Path, compiled: Callable[..., torch.Tensor]
) -> None:
    """The key of an archive names it: a bound that nothing fits into keeps nothing."""
    with CacheArtifactManager.with_fresh_cache():
        compiled(lambda x: x.tan().exp() + 1)
        compiled(lambda x: x.tan().sum(0) * 2)
        saved = torch.compiler.save_cache_artifacts()
    assert saved is not None
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").mkdir(mode=0o700)
    bounded = CacheArtifactManager.deserialize(saved[0])
    assert bounded is not None
    assert all(f"{tmp_path / 'cache'} of 10 GB #" in artifact.key for artifact in bounded["mixbackend"])
    bounded["mixbackend"] = [
        replace(artifact, key=artifact.key.replace(" of 10 GB #", f" of {max_gb:g} GB #"))
        for artifact in bounded["mixbackend"]
    ]
    CacheArtifactManager.populate_caches(bounded)
    assert len(artifacts_of(tmp_path / "cache")) == left


def test_a_folder_that_takes_the_place_of_the_usual_one_is_told_by_the_environment_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "no folder").touch()
    monkeypatch.setenv("MIXBACKEND_CACHE", str(tmp_path / "no folder"))
    with CacheArtifactManager.with_fresh_cache(), caplog.at_level(logging.WARNING, "mixbackend"):
        mixture = Mixture(load_config(CONFIG))
        with torch.no_grad():
            torch.compile(lambda x: x.cosh() * 3, backend=mixture)(torch.linspace(-1, 1, 6))
        saved = torch.compiler.save_cache_artifacts()
        assert saved is not None
        torch.compiler.load_cache_artifacts(saved[0])
    assert [message.count("no folder") > 0 for message in caplog.messages] == [True]


def test_content_that_is_no_cache_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    take_part_in_saved_caches()
    with CacheArtifactManager.with_fresh_cache():
        add_to_saved_caches("mixbackend", f"{tmp_path} #1", lambda: b"no archive")
        saved = torch.compiler.save_cache_artifacts()
    assert saved is not None
    with caplog.at_level(logging.WARNING, "mixbackend"):
        torch.compiler.load_cache_artifacts(saved[0])
    assert "is not loaded" in caplog.text and "no archive of a cache" in caplog.text
