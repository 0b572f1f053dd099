"""``mixbackend cache``: looking, clearing, carrying, and who may bring native code."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mixbackend import registry
from mixbackend.backends.eager import EagerBackend
from mixbackend.cli import main
from mixbackend.contracts import CONTRACT_VERSION
from mixbackend.host.devices import devices_here
from mixbackend.storage import ArtifactStore, Database, Label, artifact_key

Call = Callable[..., Any]


class Fast(EagerBackend):
    name = "fast"

    def fingerprint(self) -> str:
        return "fast 1"


DEVICE = devices_here()[0]
KEY = artifact_key("region", "fast", "fast 1", "live", DEVICE)


@pytest.fixture(autouse=True)
def backends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Two known backends, and a user's cache folder that is the test's own."""
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda *_, **__: str(tmp_path / "usual"))
    monkeypatch.delenv("MIXBACKEND_DEBUG", raising=False)
    # As of an installed package: its source is no part of the fingerprint.
    monkeypatch.setattr(registry, "source_digest", lambda backend: "")
    with registry.isolated_registry(Fast, EagerBackend):
        yield


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Runs ``mixbackend cache``: the JSON answer, or (status, output, errors) without ``--json``."""

    def run(*arguments: object) -> Any:
        with pytest.raises(SystemExit) as left:
            main(["cache", *map(str, arguments)])
        captured = capsys.readouterr()
        status = left.value.code if isinstance(left.value.code, int) else 0
        if "--json" in arguments and status == 0:
            return json.loads(captured.out)
        return status, captured.out, captured.err

    return run


def fill(folder: Path, fingerprint: str = "fast 1", device: str = DEVICE) -> Path:
    folder.mkdir(mode=0o700, exist_ok=True)
    database = Database.open(folder)
    database.set_rates("backend", f"fast | {fingerprint} | {device} | torch 1 | threads 2", {"rates": []})
    database.set_decision("graph", {"choice": 1}, device=device, fingerprints={"fast": fingerprint})
    database.quarantine("region 2", "fast", fingerprint, "crashed [badly]")
    database.confirm("region", "fast", fingerprint)
    store = ArtifactStore.open(folder)
    store.put(artifact_key("region", "fast", fingerprint, "live", device), b"code", Label("fast", fingerprint, device))
    return folder


def counts(folder: Path) -> dict[str, int]:
    database = Database.open(folder)
    tables = ("rates", "decisions", "quarantine", "verified")
    return {**{name: len(database.rows(name)) for name in tables}, "artifacts": ArtifactStore.open(folder).usage()[0]}  # type: ignore[arg-type]


def test_info_tells_what_is_here_and_what_is_out_of_date(call: Call, tmp_path: Path) -> None:
    folder = fill(fill(fill(tmp_path / "cache"), "fast 0"), device="cpu of another make")
    found = call("info", "--dir", folder, "--json")
    assert found["folder"] == str(folder) and found["remote"] is None and found["devices"][0] == DEVICE
    assert found["fingerprints"]["fast"] == "fast 1"
    assert found["artifacts"] == [{"backend": "fast", "count": 3, "bytes": found["artifacts"][0]["bytes"], "stale": 1}]
    assert found["artifacts"][0]["bytes"] == ArtifactStore.open(folder).usage()[1]
    rows = {row["table"]: (row["count"], row["stale"], row["elsewhere"]) for row in found["rows"]}
    assert rows["rates"] == (3, 1, 1) and rows["verified"] == (2, 1, 0)
    (quarantined,) = found["quarantines"]
    assert quarantined["reason"] == "crashed [badly]" and quarantined["expired"] == ""
    assert 0 < found["database_bytes"] < found["database_limit"] and found["artifact_limit"] == 1e10


def test_info_as_text(call: Call, tmp_path: Path) -> None:
    folder = fill(tmp_path / "cache", "fast 0")
    (folder / "tuning-abc").mkdir()
    (folder / "tuning-abc" / "values.bin").write_bytes(b"x" * 2000)
    status, text, _ = call("info", "--dir", folder)
    assert status == 0
    for told in ("fast is another one now", "crashed [badly]", "rates", "left by a race", "2 kB", "10 GB"):
        assert told in text


def test_info_of_a_configuration(call: Call, tmp_path: Path) -> None:
    fill(tmp_path / "cache")
    file = tmp_path / "prefs.yaml"
    file.write_text(f"cache: {{dir: {tmp_path}/cache, max_gb: 2, remote: 'memory://fleet'}}\n")
    found = call("info", "--config", file, "--json")
    assert found["artifact_limit"] == 2e9 and found["remote"] == "memory://fleet"
    assert call("info", "--json")["folder"] == str(tmp_path / "usual")


@pytest.mark.parametrize("command", ["info", "clear", "export"])
def test_a_folder_that_is_not_there_is_not_made(command: str, call: Call, tmp_path: Path) -> None:
    more = (tmp_path / "cache.zip",) if command == "export" else ()
    status, text, errors = call(command, *more, "--dir", tmp_path / "none")
    assert status == 1 and text == "" and "does not exist" in errors
    assert not (tmp_path / "none").exists() and not (tmp_path / "cache.zip").exists()


@pytest.mark.parametrize(
    ("options", "gone"),
    [
        ((), {"rates", "decisions", "quarantine", "verified", "artifacts"}),
        (("--artifacts",), {"artifacts"}),
        (("--decisions", "--quarantine"), {"decisions", "quarantine"}),
        (("--measurements",), {"rates"}),
        (("--native",), set()),
        (("--stale",), set()),
    ],
)
def test_clear(options: tuple[str, ...], gone: set[str], call: Call, tmp_path: Path) -> None:
    folder = fill(tmp_path / "cache")
    before = counts(folder)
    told = call("clear", *options, "--dir", folder, "--dry-run", "--json")
    assert told["dry_run"] and {kind for kind, count in told["removed"].items() if count} == gone
    assert counts(folder) == before
    told = call("clear", *options, "--dir", folder, "--json")
    assert {kind for kind, count in told["removed"].items() if count} == gone
    assert {kind for kind, count in counts(folder).items() if not count} == gone


def test_clear_what_is_out_of_date(call: Call, tmp_path: Path) -> None:
    folder = fill(fill(tmp_path / "cache", "fast 0"))
    before = counts(folder)
    status, text, _ = call("clear", "--stale", "--dry-run", "--dir", folder)
    assert status == 0 and "would remove" in text and "1 artifacts" in text
    assert call("clear", "--stale", "--artifacts", "--dir", folder, "--json")["removed"] == {"artifacts": 1}
    call("clear", "--stale", "--dir", folder)
    assert counts(folder) == {**before, "rates": 1, "verified": 1, "artifacts": 1}
    assert ArtifactStore.open(folder).get(KEY) == b"code"
    status, text, _ = call("clear", "--stale", "--dir", folder)
    assert text.strip().endswith("removed nothing")


def test_native_code_goes_with_the_folder_that_holds_it(call: Call, tmp_path: Path) -> None:
    native = tmp_path / "usual" / "codegen-cpp"
    native.mkdir(parents=True, mode=0o700)
    (tmp_path / "usual").chmod(0o700)
    (native / "kernel.so").write_bytes(b"x")
    call("clear", "--dir", fill(tmp_path / "cache"))
    call("clear", "--artifacts")
    assert (native / "kernel.so").exists()
    assert call("clear", "--json", "--dry-run")["removed"]["native code"] == 1
    assert call("clear", "--json")["removed"]["native code"] == 1
    assert not (native / "kernel.so").exists()


@pytest.mark.parametrize("url", [False, True])
def test_export_and_import(url: bool, call: Call, tmp_path: Path) -> None:
    target = f"file://{tmp_path}/cache.zip" if url else str(tmp_path / "cache.zip")
    written = call("export", target, "--dir", fill(tmp_path / "one"), "--json")
    assert written["bytes"] == (tmp_path / "cache.zip").stat().st_size and written["written"]["decisions"] == 1
    assert [path.name for path in tmp_path.glob("*cache.zip*")] == ["cache.zip"]
    (tmp_path / "two").mkdir(mode=0o700)
    brought = call("import", target, "--dir", tmp_path / "two", "--json", *(["--trust"] if url else []))
    assert brought["refused"] == [] and brought["taken"]["artifacts"] == 1
    assert counts(tmp_path / "two") == counts(tmp_path / "one")
    status, text, _ = call("import", target, "--dir", tmp_path / "two", *(["--trust"] if url else []))
    assert status == 0 and text.startswith("taken: nothing; here already: 1 artifacts")


def test_native_code_comes_from_ones_own_files_only(call: Call, tmp_path: Path) -> None:
    archive = tmp_path / "cache.zip"
    call("export", archive, "--dir", fill(tmp_path / "one"))
    assert archive.stat().st_mode & 0o077 == 0
    archive.chmod(0o666)
    (tmp_path / "two").mkdir(mode=0o700)
    for source in (archive, f"file://{archive}"):
        brought = call("import", source, "--dir", tmp_path / "two", "--json")
        (refusal,) = brought["refused"]
        assert refusal["what"] == f"artifacts/{KEY}.artifact" and "native code" in refusal["why"]
    brought = call("import", archive, "--trust", "--dir", tmp_path / "two", "--json")
    assert len(brought["refused"]) == 1, "--trust is about URLs, whose owner nobody knows"
    status, text, _ = call("import", archive, "--dir", tmp_path / "two")
    assert status == 0 and "can be written by others" in text
    assert counts(tmp_path / "two") == {**counts(tmp_path / "one"), "artifacts": 0}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("import", "none.zip"), "cannot be read"),
        (("import", "text.zip"), "no archive of a cache"),
        (("import", "carrierpigeon://coop/cache.zip"), "carrierpigeon"),
        (("export", "no/such/folder/cache.zip"), "cannot be written"),
        (("export", "carrierpigeon://coop/cache.zip"), "carrierpigeon"),
    ],
)
def test_what_cannot_be_carried(
    arguments: tuple[str, ...], told: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.zip").write_text("this is no archive")
    status, text, errors = call(*arguments, "--dir", fill(tmp_path / "cache"))
    assert status == 1 and text == "" and told in errors and "Traceback" not in errors
    assert sorted(os.listdir(tmp_path)) == ["cache", "text.zip"], "nothing half-written stays"


# --- why -------------------------------------------------------------------------------------------------------------

_TWO_SIZES = """
import torch

def make(rows=4):
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval(), (torch.ones(rows, 8),), {}

def other():
    return make(5)
"""


def test_why_names_the_fields_of_an_artifact_that_are_others_here(call: Call, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    label = Label("fast", "fast 0", DEVICE, CONTRACT_VERSION, "live", "region")
    ArtifactStore.open(folder).put(KEY, b"code", label)
    ArtifactStore.open(folder).put("0" * 64, b"code", Label("gone", "gone 1", "cpu of another make"))
    (entry,) = call("why", KEY[:10], "--dir", folder, "--json")["entries"]
    assert entry["entry"]["key"] == KEY
    assert entry["differs"] == [{"field": "fingerprint", "stored": "fast 0", "here": "fast 1"}]
    assert set(entry["same"]) == {"form", "backend", "device", "contract"}
    assert set(entry["unknown"]) == {"region", "weights"}
    status, text, _ = call("why", "--dir", folder)
    assert status == 0 and "is not here)" in text and "cpu of another make" in text
    assert call("why", "nothing", "--dir", folder)[0] == 1


def test_why_says_that_nothing_is_remembered(call: Call, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir(mode=0o700)
    folder = str(tmp_path / "empty")
    status, text, _ = call("why", "--dir", folder)
    assert status == 0 and text.startswith("nothing is remembered in")
    assert call("why", "--dir", folder, "--json")["entries"] == []


def test_why_holds_plans_against_a_configuration_and_a_model(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two_sizes.py").write_text(_TWO_SIZES)
    folder = tmp_path / "cache"
    # Found through an entry point, as it were: plans with backends of this process alone have no key.
    monkeypatch.setattr(registry, "IN_PROCESS", "somewhere")
    with pytest.raises(SystemExit):
        file = tmp_path / "prefs.yaml"
        file.write_text(f"cache: {{dir: {folder}}}\n")
        main(["explain", "two_sizes:make", "--config", str(file), "--json"])
    call("info", "--dir", folder)  # reads what explain printed
    plans = [row["subject"] for row in Database.open(folder).rows("plans")]
    assert plans

    def differing(*options: object) -> set[str]:
        entries = call("why", plans[0], "--dir", folder, "--json", *options)["entries"]
        return {item["field"] for entry in entries for item in entry["differs"]}

    assert differing() == set() and differing("--model", "two_sizes:make") == set()
    assert differing("--model", "two_sizes:other") == {"graph"}
    file.write_text(f"cache: {{dir: {folder}}}\nobjective: compile_time\n")
    assert differing("--config", file) == {"configuration.objective"}
