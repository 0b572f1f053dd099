"""Finding a compiler, and saying why there is none."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from mixbackend.backends.codegen.targets.cpp.features import machine_features
from mixbackend.backends.codegen.targets.cpp.target import CppTarget
from mixbackend.backends.common.compiler import Compiler, NoCompilerError, find_compiler


def test_the_compiler_of_this_machine_answers_with_its_version() -> None:
    compiler = find_compiler()
    assert compiler.version and Path(compiler.command[0]).exists()


def test_cxx_is_taken_with_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_compiler().command[0]
    monkeypatch.setenv("CXX", f"{found} -pipe")
    assert find_compiler().command == (found, "-pipe")


def test_without_a_compiler_the_reason_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    availability = CppTarget(tmp_path).availability()
    assert not availability.available
    assert "apt install g++" in availability.reason and "set CXX" in availability.reason


def test_a_cxx_that_does_not_run_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "nowhere"))
    with pytest.raises(NoCompilerError, match="nowhere does not run"):
        find_compiler()


def test_a_cxx_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", f"{sys.executable} -c 'raise SystemExit(3)'")
    with pytest.raises(NoCompilerError, match="fails"):
        find_compiler()


def test_a_compiler_that_cannot_preprocess_is_refused() -> None:
    with pytest.raises(NoCompilerError, match=r"broken 1\.0"):
        machine_features(Compiler((sys.executable, "-c", "raise SystemExit(1)"), "broken 1.0"))


def test_features_name_a_vector_width_and_agree_with_themselves() -> None:
    features = machine_features(find_compiler())
    assert features.cache_bytes >= 4096
    assert features.vector_bytes in (16, 32, 64)
    assert len(features.digest) == 64


@pytest.mark.parametrize(("machine", "first"), [("x86_64", "-march=native"), ("aarch64", "-mcpu=native")])
def test_the_compiler_is_asked_for_this_processor_in_the_words_of_its_kind(
    machine: str, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    takes_all = Compiler((sys.executable, "-c", f"print('#define __KIND__ {machine}')"), f"for {machine}")
    assert machine_features(takes_all).flags == (first,)
