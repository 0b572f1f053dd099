"""The command line: answers, exit status, errors, thread settings."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mixbackend.cli import main
from mixbackend.cost.switches import SWITCH

ROOT = Path(__file__).parents[2]

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Runs a command line in this process: (status, standard output, standard error)."""
    monkeypatch.delenv("MIXBACKEND_DEBUG", raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(arguments)
        captured = capsys.readouterr()
        code = left.value.code
        return (code if isinstance(code, int) else 0), captured.out, captured.err

    return run


def run_process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, env={**clean, **environment}
    )


def test_help_lists_the_commands_that_exist_and_no_others(call: Call) -> None:
    status, text, _ = call("--help")
    assert status == 0
    for command in "backends explain tune export demo config bench cache certify minify bisect".split():
        assert f"\n  {command} " in text


def test_help_and_version_load_no_torch() -> None:
    program = "import sys; from mixbackend.cli import main\ntry: main([{!r}])\nexcept SystemExit: pass\n"
    for option in ("--help", "--version"):
        done = run_process("-c", program.format(option) + "assert 'torch' not in sys.modules, 'torch was loaded'")
        assert done.returncode == 0, done.stderr


def test_the_module_is_the_command_too() -> None:
    done = run_process("-m", "mixbackend", "--version")
    assert done.returncode == 0 and done.stdout.startswith("mixbackend 0.")


def test_backends_as_json(call: Call) -> None:
    status, text, _ = call("backends", "--json")
    rows = json.loads(text)
    assert status == 0 and rows[-1]["name"] == "eager" and rows[-1]["available"] is True
    keys = {"name", "available", "reason", "version", "fingerprint", "origin", "contract_version"}
    assert all(set(row) == keys for row in rows)
    assert all(row["available"] or row["reason"] for row in rows)


def test_backends_as_text(call: Call) -> None:
    status, text, _ = call("backends")
    assert status == 0 and "eager" in text and "inductor" in text and "\x1b" not in text


@pytest.mark.parametrize("example", sorted(path.name for path in (ROOT / "examples").glob("*.yaml")))
def test_config_check_accepts_the_examples(call: Call, example: str) -> None:
    status, text, _ = call("config", "check", str(ROOT / "examples" / example))
    assert status == 0 and ": ok (" in text


def test_config_check_reports_every_problem(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "prefs.yaml"
    file.write_text("backend: [eager]\nverify: {when: of}\n")
    status, text, errors = call("config", "check", str(file))
    assert status == 1 and text == ""
    assert f"{file}:1:1: backend: unknown key; did you mean 'backends'?" in errors
    assert f"{file}:2:16: verify.when" in errors and "Traceback" not in errors


def test_config_check_as_json(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "prefs.yaml"
    file.write_text("backend: [eager]\n")
    status, text, _ = call("config", "check", str(file), "--json")
    answer = json.loads(text)
    assert status == 1 and answer["ok"] is False
    (problem,) = answer["problems"]
    assert (problem["line"], problem["column"], problem["key"]) == (1, 1, "backend")
    file.write_text("verify: {when: off}\n")
    status, text, _ = call("config", "check", str(file), "--json")
    answer = json.loads(text)
    assert status == 0 and answer["ok"] is True and answer["configuration"]["verify"]["when"] == "off"


def test_config_check_of_broken_yaml_and_of_no_file(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "prefs.yaml"
    file.write_text("backends: [eager\n")
    status, _, errors = call("config", "check", str(file))
    assert status == 1 and "not valid YAML" in errors and f"{file}:2:1" in errors
    status, _, errors = call("config", "check", str(tmp_path / "none.yaml"))
    assert status == 1 and "cannot be read" in errors


def test_config_check_warns_of_what_cannot_be_used_here(call: Call, tmp_path: Path) -> None:
    from mixbackend import registry
    from mixbackend.backends.eager import EagerBackend
    from mixbackend.contracts import Availability

    class Paid(EagerBackend):
        name = "paid"

        def availability(self) -> Availability:
            return Availability(False, "no license")

    file = tmp_path / "prefs.yaml"
    file.write_text("backends: [paid, eager]\n")
    with registry.isolated_registry(Paid, EagerBackend):
        status, _, errors = call("config", "check", str(file))
    assert status == 0 and "warning: backend 'paid' cannot be used on this machine: no license" in errors


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_config_schema(call: Call, options: tuple[str, ...]) -> None:
    status, text, _ = call("config", "schema", *options)
    schema = json.loads(text)
    assert status == 0 and "rules" in schema["properties"] and schema["$schema"].startswith("https://json-schema.org/")


@pytest.mark.parametrize(
    "arguments",
    [
        ("frobnicate",),
        ("backends", "--jsn"),
        ("config", "check"),
        ("bench", "partitioner", "--nodes", "1000,many"),
        ("bench", "partitioner", "--nodes", "0"),
        ("explain", "no_such_model_at_all"),
        ("explain", "no_such_module:make"),
        ("explain", "json:dumps_not_there"),
        ("explain", "sys:version"),
    ],
)
def test_a_wrong_command_line_ends_with_two(call: Call, arguments: tuple[str, ...]) -> None:
    status, text, errors = call(*arguments)
    assert status == 2 and text == "" and "Error" in errors and "Traceback" not in errors


TINY = """
import torch

def make():
    print("models print things")
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    return model, (torch.randn(3, 4),), {}

def wrong():
    return 3

def throws():
    raise RuntimeError("no weights here")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a model, and a configuration that keeps its cache there."""
    (tmp_path / "tiny_model_of_a_user.py").write_text(TINY)
    (tmp_path / "prefs.yaml").write_text(f"backends: [eager]\ncache: {{dir: {tmp_path}/cache}}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(SWITCH, "0")
    return tmp_path


def test_explain_a_model_of_ones_own(call: Call, folder: Path) -> None:
    status, text, errors = call(
        "explain", "tiny_model_of_a_user:make", "--config", "prefs.yaml", "--json", "--html", "report.html"
    )
    assert status == 0, errors
    report = json.loads(text)
    assert report["schema"] == 1 and [graph["phase"] for graph in report["graphs"]] == ["inference"]
    assert "models print things" in errors
    assert "eager" in (folder / "report.html").read_text(encoding="utf-8")


def test_explain_a_training_step_as_text(call: Call, folder: Path) -> None:
    status, text, errors = call("explain", "tiny_model_of_a_user:make", "--config", "prefs.yaml", "--train")
    assert status == 0, errors
    assert "forward, " in text and "backward, " in text and "nodes per backend: eager" in text


def test_explain_why_a_node_is_where_it_is(call: Call, folder: Path) -> None:
    words = ("explain", "tiny_model_of_a_user:make", "--config", "two.yaml")
    (folder / "two.yaml").write_text(f"backends: [codegen, eager]\ncache: {{dir: {folder}/cache}}\n")
    status, text, errors = call(*words, "--why", "relu", "--why", "0", "--json")
    assert status == 0, errors
    rows = json.loads(text)["why"]
    assert {row["op"] for row in rows} >= {"aten.relu.default"} and any(row["module"] == "0" for row in rows)
    assert all(len(row["alternatives"]) == 1 and row["parts"]["total_s"] > 0.0 for row in rows)
    status, text, errors = call(*words, "--why", "aten.relu")
    assert status == 0 and "aten.relu.default" in text and "decided by estimates" in text, errors


def test_why_nobody_knows(call: Call, folder: Path) -> None:
    status, text, errors = call(
        "explain", "tiny_model_of_a_user:make", "--config", "prefs.yaml", "--why", "rellu", "--why", "0"
    )
    assert status == 1 and text == "" and "is meant by 'rellu'" in errors and "did you mean 'relu'?" in errors


def test_errors_are_told_not_dumped(call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, _, errors = call("explain", "tiny_model_of_a_user:wrong")
    assert status == 2 and "gives (module, args, kwargs), not a int" in errors.replace("\n", " ")
    status, _, errors = call("explain", "tiny_model_of_a_user:throws")
    assert status == 1 and "RuntimeError: no weights here" in errors and "Traceback" not in errors
    status, _, errors = call("explain", "tiny_model_of_a_user:make", "--config", "none.yaml")
    assert status == 1 and errors.count("[configuration]") == 1 and "Traceback" not in errors
    monkeypatch.setenv("MIXBACKEND_DEBUG", "1")
    with pytest.raises(SystemExit):
        main(["explain", "tiny_model_of_a_user:throws"])


def test_debug_shows_the_traceback(folder: Path) -> None:
    done = run_process("-m", "mixbackend", "explain", "tiny_model_of_a_user:throws", MIXBACKEND_DEBUG="1")
    assert done.returncode == 1 and "Traceback" in done.stderr and "no weights here" in done.stderr


@pytest.mark.sampled(1)
@pytest.mark.parametrize("given", [{}, {"GOMP_SPINCOUNT": "77"}])
def test_threads_wait_as_in_the_users_programs(given: dict[str, str]) -> None:
    """OpenMP itself says what it read: rates and decisions are measured as programs run that only import torch."""
    done, plain = (
        run_process(*arguments, OMP_DISPLAY_ENV="verbose", **given)
        for arguments in (("-m", "mixbackend", "backends"), ("-c", "import torch"))
    )
    (here,), (there,) = (re.findall("GOMP_SPINCOUNT = .*", item.stderr) for item in (done, plain))
    assert done.returncode == 0 and here == there
    assert given.get("GOMP_SPINCOUNT", "") in here


def test_bench_partitioner(call: Call) -> None:
    status, text, errors = call("bench", "partitioner", "--nodes", "300", "--json")
    assert status == 0, errors
    (row,) = json.loads(text)
    assert {"nodes", "backends", "seconds", "optimal", "regions"} <= set(row) and row["nodes"] >= 300
    status, text, _ = call("bench", "partitioner", "--nodes", "300")
    assert status == 0 and str(row["regions"]) in text


@pytest.mark.parametrize("command", [("bench", "suite"), ("bench", "partitioner"), ("demo",)])
def test_commands_with_a_body_of_their_own_show_its_options(call: Call, command: tuple[str, ...]) -> None:
    status, text, errors = call(*command, "--help")
    assert status == 0 and "--json" in text, errors
