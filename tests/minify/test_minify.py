"""``mixbackend.minify`` and its command: models, dumps, scripts, and what it says where there is nothing to find."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from faulty_backends import Right, WrongGelu

import mixbackend
from mixbackend import registry
from mixbackend.certify.source import Source, source_of
from mixbackend.cli import main
from mixbackend.contracts import MixbackendError
from mixbackend.graph.trace import trace_region
from mixbackend.minify.inquiry import Inquiry
from mixbackend.minify.piece import Piece
from mixbackend.minify.script import backend_text, script_of
from mixbackend.minify.verdict import Verdict, verdict_of


def only(name: str) -> dict[str, object]:
    return {"backends": [name, "eager"], "rules": [{"match": {}, "require": name}], "select": "off"}


CONFIG = only("wrong_gelu")


def model() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(32, 48), torch.nn.GELU(), torch.nn.Linear(48, 32), torch.nn.LayerNorm(32)]
    return torch.nn.Sequential(*layers).eval(), (torch.randn(4, 32),), {}


@pytest.fixture
def wrong():
    with registry.isolated_registry(WrongGelu, Right, discover=True):
        yield


def run_script(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = folder / "smallest.py"
    path.write_text(text)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))}
    return subprocess.run([sys.executable, str(path)], capture_output=True, text=True, env=environment)


def test_a_wrong_op_of_a_model_is_a_script(wrong: None, tmp_path: Path) -> None:
    module, args, _ = model()
    before = torch.get_rng_state()
    with torch.no_grad():
        found = mixbackend.minify(module, *args, config=CONFIG)
    assert torch.equal(before, torch.get_rng_state())
    assert [fault.backend for fault in found.faults] == ["wrong_gelu"]
    assert found.smallest is not None and found.smallest.names == (("aten.gelu.default", 1),)
    assert found.reproduces and found.piece is not None
    assert all(value.numel() == 1 for value in found.piece.inputs)
    assert "gelu" in str(found) and json.loads(json.dumps(found.to_dict()))["smallest"]["ops"] == 1
    # Once it is right, the script says so.
    mended = found.script.replace("WrongGelu", "Right")
    done = run_script(mended, tmp_path)
    assert done.returncode == 0 and "right" in done.stdout, done.stderr


@pytest.mark.nightly  # the command on a model runs by day
def test_a_dump_is_enough_and_the_exit_status_says_it(
    wrong: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MIXBACKEND_DUMP", str(tmp_path / "dump"))
    module, args, _ = model()
    with torch.no_grad():
        torch.compile(module, backend=mixbackend.auto(CONFIG))(*args)
    monkeypatch.delenv("MIXBACKEND_DUMP")
    script = tmp_path / "smallest.py"
    with pytest.raises(SystemExit) as left:
        main(["minify", str(tmp_path / "dump"), "--json", "--script", str(script)])
    assert left.value.code == 1
    data = json.loads(capsys.readouterr().out)
    assert data["smallest"]["names"] == {"aten.gelu.default": 1}
    assert data["script"] == script.read_text()


def test_nothing_is_found_where_nothing_is_wrong(wrong: None) -> None:
    module, args, _ = model()
    found = mixbackend.minify(module, *args, config=only("right"), slow=1e6)
    assert not found.found and found.examined == 2 and not found.script  # forward and backward
    assert "0 of them fail" in str(found)


def test_what_cannot_be_minified_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(MixbackendError, match="MIXBACKEND_DUMP"):
        mixbackend.minify(tmp_path)
    with pytest.raises(MixbackendError, match="no arguments"):
        mixbackend.minify(tmp_path, 1)

    class Local(WrongGelu):
        name = "local"

    module, args, _ = model()
    with registry.isolated_registry(Local, discover=True), pytest.raises(MixbackendError, match="cannot be carried"):
        mixbackend.minify(module, *args, config=only("local"))


def test_scripts_carry_values_that_no_seed_gives(tmp_path: Path) -> None:
    inputs = (
        torch.randn(6, 4).t(),
        torch.tensor([[1, 0], [3, 2]]),
        torch.randn(1, 4).expand(6, 4),
        torch.arange(40).reshape(5, 8) % 7,
    )

    def function(x: torch.Tensor, place: torch.Tensor, row: torch.Tensor, long: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x[place].sum() + row + long.sum())

    piece = Piece(trace_region(function, inputs), inputs)
    source = source_of(WrongGelu())
    assert source is not None
    text = script_of(piece, Verdict("wrong", "run", "off"), "wrong_gelu", source, None)
    names: dict[str, object] = {"__name__": "script"}
    exec(compile(text, "script", "exec"), names)
    values = names["inputs"]()  # type: ignore[operator]
    assert all(torch.equal(mine, value) for mine, value in zip(values, inputs, strict=True))
    assert [value.stride() for value in values] == [value.stride() for value in inputs]
    assert run_script(text, tmp_path).returncode == 1


def test_objects_travel_as_their_attributes(tmp_path: Path) -> None:
    plain, told = WrongGelu(), WrongGelu()
    told.op = "aten.relu.default"  # type: ignore[misc]
    source = source_of(told)
    assert source is not None and source.load().plugin.op == told.op and source != source_of(plain)
    told.lock = threading.Lock()  # type: ignore[attr-defined]
    assert source_of(told) is None
    inputs = (torch.randn(6, 4),)
    for function, fails in ((torch.relu, True), (torch.nn.functional.gelu, False)):
        piece = Piece(trace_region(function, inputs), inputs)
        text = script_of(piece, Verdict("wrong", "run", "off"), "wrong_gelu", source, None)
        assert run_script(text, tmp_path).returncode == int(fails)


def test_backends_are_imported_from_where_they_are() -> None:
    for name in registry.names():
        imports, made = backend_text(Source("name", name))
        names: dict[str, object] = {}
        exec("\n".join(imports), names)
        assert eval(made, names).name == name


def test_deaths_are_of_whatever_was_at_work() -> None:
    crash = {"status": "crash", "detail": "signal SIGSEGV: ", "at": "run"}
    assert verdict_of(crash).kind == "crashes" and verdict_of(crash).sort == "signal SIGSEGV"
    assert not verdict_of(crash).like(verdict_of({**crash, "detail": "signal SIGABRT: "}))
    assert verdict_of({"status": "timeout", "detail": "", "at": "compile"}).kind == "hangs"
    assert verdict_of({**crash, "at": "eager"}).kind == "unknown"


def test_what_is_not_the_backends_may_take_longer() -> None:
    inquiry = Inquiry(lambda name: Source("import", "faulty_backends:WrongGelu"), 1.5)
    rows = torch.randn(1024, 1024)
    piece = Piece(trace_region(lambda x: torch.nn.functional.gelu(torch.softmax(x @ x, -1) @ x), (rows,)), (rows,))
    try:
        # Holding this against float64 takes longer than the backend may.
        assert inquiry.verdict(piece, "wrong_gelu", judged=False).kind == "wrong"
    finally:
        inquiry.close()
