"""The cache of compiled functions: found again, verified, shared between threads and processes."""

from __future__ import annotations

import ctypes
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from warm_processes import WarmProcesses

from mixbackend.backends.codegen.targets.cpp import build
from mixbackend.backends.codegen.targets.cpp.build import PLACEHOLDER, FunctionLibrary, Toolchain
from mixbackend.backends.codegen.targets.cpp.features import machine_features
from mixbackend.backends.common.compiler import find_compiler
from mixbackend.contracts import CodegenError


@pytest.fixture
def toolchain(tmp_path: Path) -> Toolchain:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    compiler = find_compiler()
    return Toolchain(compiler, machine_features(compiler), openmp=False, folder=folder)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Sources that the compiler was given."""
    seen: list[str] = []
    real = build.compile_object

    def counted(source: str, toolchain: Toolchain) -> bytes:
        seen.append(source)
        return real(source, toolchain)

    monkeypatch.setattr(build, "compile_object", counted)
    return seen


def _text(value: int) -> str:
    return f'extern "C" int {PLACEHOLDER}() {{ return {value}; }}\n'


def _value(function: build.Function) -> int:
    return ctypes.CFUNCTYPE(ctypes.c_int)(function.address)()


def test_functions_are_compiled_once_and_found_again(toolchain: Toolchain, runs: list[str]) -> None:
    library = FunctionLibrary(toolchain, "")
    first = library.functions([_text(1), _text(2)])
    assert [_value(function) for function in first] == [1, 2]
    count = len(runs)
    assert library.functions([_text(2), _text(1)]) == first[::-1]
    elsewhere = FunctionLibrary(toolchain, "").functions([_text(1), _text(3)])
    assert [_value(function) for function in elsewhere] == [1, 3]
    assert len(runs) == count + 1 and "return 3" in runs[-1] and "return 1" not in runs[-1]


def test_equal_texts_are_one_function(toolchain: Toolchain) -> None:
    one, other = FunctionLibrary(toolchain, "").functions([_text(4), _text(4)])
    assert one is other


def test_few_objects_hold_many_functions(toolchain: Toolchain, runs: list[str]) -> None:
    functions = FunctionLibrary(toolchain, "").functions([_text(value) for value in range(40)])
    assert [_value(function) for function in functions] == list(range(40))
    assert len({function.object_hash for function in functions}) == len(runs) <= 8


def test_the_head_and_the_flags_are_part_of_the_key(toolchain: Toolchain) -> None:
    keys = {FunctionLibrary(toolchain, head).key(_text(1)) for head in ("", "// other\n")}
    threaded = Toolchain(toolchain.compiler, toolchain.features, openmp=True, folder=toolchain.folder)
    keys.add(FunctionLibrary(threaded, "").key(_text(1)))
    assert len(keys) == 3


def test_a_damaged_object_is_built_again(toolchain: Toolchain, runs: list[str]) -> None:
    (function,) = FunctionLibrary(toolchain, "").functions([_text(5)])
    path = toolchain.folder / f"{function.object_hash}.so"
    content = path.read_bytes()
    # Another file in its place: the one that is loaded keeps its pages.
    path.unlink()
    path.write_bytes(content[:-1] + b"x")
    (again,) = FunctionLibrary(toolchain, "").functions([_text(5)])
    assert _value(again) == 5 and len(runs) == 2
    assert path.read_bytes() == content


@pytest.mark.parametrize("reference", ["", "../../etc/passwd", "0" * 64, "\udcff"])
def test_a_damaged_reference_is_built_again(toolchain: Toolchain, reference: str, runs: list[str]) -> None:
    (function,) = FunctionLibrary(toolchain, "").functions([_text(6)])
    path = toolchain.folder / f"{function.key}.ref"
    path.write_bytes(reference.encode(errors="surrogateescape"))
    (again,) = FunctionLibrary(toolchain, "").functions([_text(6)])
    assert _value(again) == 6 and len(runs) == 2
    assert path.read_text() == function.object_hash


def test_where_nothing_in_the_folder_can_be_run_functions_are_loaded_from_memory(
    toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ctypes.CDLL

    def refused_on_disk(name: str) -> ctypes.CDLL:
        if not name.startswith("/proc/self/fd/"):
            raise OSError(f"{name}: failed to map segment from shared object")
        return real(name)

    monkeypatch.setattr(ctypes, "CDLL", refused_on_disk)
    library = FunctionLibrary(toolchain, "")
    functions = [*library.functions([_text(21)]), *library.functions([_text(22)]), *library.functions([_text(23)])]
    assert [_value(function) for function in functions] == [21, 22, 23]


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners of files here")
def test_nothing_is_loaded_from_a_folder_that_others_can_write_to(toolchain: Toolchain) -> None:
    toolchain.folder.chmod(0o777)
    with pytest.raises(CodegenError, match="can be written by others"):
        FunctionLibrary(toolchain, "").functions([_text(7)])


def test_a_refused_text_is_an_error_with_text_and_words_and_can_be_tried_again(toolchain: Toolchain) -> None:
    library = FunctionLibrary(toolchain, "")
    wrong = f'extern "C" int {PLACEHOLDER}() {{ return undeclared_thing; }}\n'
    for _ in range(2):
        with pytest.raises(CodegenError) as caught:
            library.functions([wrong])
        assert "undeclared_thing" in caught.value.what and "return undeclared_thing" in caught.value.where
    assert _value(library.functions([_text(8)])[0]) == 8


def test_a_compiler_that_vanished_is_an_error(toolchain: Toolchain, tmp_path: Path) -> None:
    gone = build.Compiler((str(tmp_path / "gone"),), "gone 1.0")
    broken = Toolchain(gone, toolchain.features, openmp=False, folder=toolchain.folder)
    with pytest.raises(CodegenError, match="did not run"):
        FunctionLibrary(broken, "").functions([_text(9)])


def test_threads_that_want_the_same_function_compile_it_once(toolchain: Toolchain, runs: list[str]) -> None:
    library = FunctionLibrary(toolchain, "")
    barrier = threading.Barrier(8)

    def want(_: int) -> int:
        barrier.wait()
        return _value(library.functions([_text(10)])[0])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(want, range(8))) == [10] * 8
    assert len(runs) == 1


_CHILD = """
import ctypes, sys
from pathlib import Path
from mixbackend.backends.codegen.targets.cpp.build import PLACEHOLDER, FunctionLibrary, Toolchain
from mixbackend.backends.common.compiler import find_compiler
from mixbackend.backends.codegen.targets.cpp.features import machine_features
compiler = find_compiler()
toolchain = Toolchain(compiler, machine_features(compiler), False, Path(sys.argv[1]))
texts = ['extern "C" int %s() { return %d; }\\n' % (PLACEHOLDER, value) for value in range(20, 26)]
functions = FunctionLibrary(toolchain, "").functions(texts)
print([ctypes.CFUNCTYPE(ctypes.c_int)(function.address)() for function in functions])
"""


def test_processes_share_a_folder(toolchain: Toolchain, warm: WarmProcesses) -> None:
    children = [warm.start(_CHILD, str(toolchain.folder)) for _ in range(2)]
    assert [child.communicate()[0].strip() for child in children] == ["[20, 21, 22, 23, 24, 25]"] * 2
    assert not list(toolchain.folder.glob(".writing-*"))


def test_objects_made_elsewhere_are_installed(toolchain: Toolchain, tmp_path: Path, runs: list[str]) -> None:
    library = FunctionLibrary(toolchain, "")
    (function,) = library.functions([_text(11)])
    other_folder = tmp_path / "other"
    other_folder.mkdir(mode=0o700)
    other = FunctionLibrary(Toolchain(toolchain.compiler, toolchain.features, False, other_folder), "")
    assert other.load([function.key]) is None
    other.install(library.object_bytes(function.object_hash), [function.key])
    loaded = other.load([function.key])
    assert loaded is not None and _value(loaded[0]) == 11
    assert len(runs) == 1
