"""What inductor has for operators is asked once per machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch._inductor.config

from mixbackend.backends.inductor.handling import Memory
from mixbackend.backends.inductor.known_answers import FILE, known_answers

_PROGRAM = """
import json, sys
from mixbackend.backends.inductor import handling
from mixbackend.backends.inductor.handling import handling_of
if not {shipped}: handling.known_answers = dict
if {early}: import torch._inductor.lowering
names = ("aten.addmm.default", "aten.gelu.default", "aten._fft_r2c.default", "aten.nothing.default")
print(json.dumps([[handling_of(name) for name in names], "torch._inductor.lowering" in sys.modules]))
"""


def _ask(cache: Path, names: str = "", early: bool = False, shipped: bool = False) -> list[object]:
    program = _PROGRAM.replace("{early}", str(early)).replace("{shipped}", str(shipped))
    program = program.replace(', "aten.nothing.default"', names)
    variables = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    answer = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=True)
    return json.loads(answer.stdout)  # type: ignore[no-any-return]


@pytest.mark.nightly
def test_a_later_process_does_not_import_inductor(tmp_path: Path) -> None:
    expected = ["lowered", "decomposed", "fallback"]
    assert _ask(tmp_path) == [expected, True]
    assert _ask(tmp_path) == [expected, False]
    (file,) = tmp_path.glob("mixbackend/inductor-handling/*.json")
    file.write_text(json.dumps({"aten.addmm.default": "none"}))
    # Somebody may have registered lowerings: inductor itself answers.
    assert _ask(tmp_path, early=True) == [expected, True]
    assert _ask(tmp_path, ', "aten.nothing.default", "prims.add.default", "getitem"') == [
        ["none", "decomposed", "fallback", None, "lowered", None],
        True,
    ]


@pytest.mark.nightly
def test_what_is_shipped_is_what_inductor_says(tmp_path: Path) -> None:
    if not known_answers():
        pytest.skip("nothing is shipped for this release of torch")
    # In a process of its own: other tests let inductor register lowerings.
    program = "from mixbackend.backends.inductor.known_answers import text_of_answers; print(text_of_answers(), end='')"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert FILE.read_text() == answer.stdout
    assert _ask(tmp_path, shipped=True) == [["lowered", "decomposed", "fallback"], False]


def test_other_releases_and_settings_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.version.git_version", "another")
    assert known_answers() == {}
    monkeypatch.undo()
    with torch._inductor.config.patch(fallback_random=True):
        assert known_answers() == {}


def test_answers_outlive_the_memory(tmp_path: Path) -> None:
    file = tmp_path / "answers.json"
    Memory(file).remember("aten.add.Tensor", "lowered")
    Memory(file).remember("aten.mul.Tensor", "none")
    memory = Memory(file)
    assert [memory.answer(f"aten.{name}.Tensor") for name in ("add", "mul", "sub")] == ["lowered", "none", None]


@pytest.mark.parametrize("content", [b"", b"[1]", b"\xff\xff", b'{"aten.add.Tensor": "perhaps", "aten.mul.Tensor": 3}'])
def test_what_is_damaged_is_asked_again(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "answers.json"
    file.write_bytes(content)
    file.chmod(0o600)
    memory = Memory(file)
    assert memory.answer("aten.add.Tensor") is None and memory.answer("aten.mul.Tensor") is None


def test_what_others_can_write_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "answers.json"
    Memory(file).remember("aten.add.Tensor", "lowered")
    file.chmod(0o666)
    assert Memory(file).answer("aten.add.Tensor") is None


def test_a_folder_that_is_gone_keeps_nothing_but_answers(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "gone" / "answers.json")
    memory.remember("aten.add.Tensor", "lowered")
    assert memory.answer("aten.add.Tensor") == "lowered" and not (tmp_path / "gone").exists()
