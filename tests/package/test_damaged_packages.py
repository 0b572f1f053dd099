"""Files that are no packages, damaged, or of a later version: one clear error each, and nothing runs."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from package_models import CONFIG

import mixbackend
from mixbackend.contracts import PackageError


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("package") / "good.mix"
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8)).eval()
    rules = [{"match": {"op": "aten.gelu"}, "require": "codegen"}]
    mixbackend.export(torch.export.export(model, (torch.ones(2, 8),)), path, config={**CONFIG, "rules": rules})
    return path


def refused(path: Path, text: str) -> None:
    with pytest.raises(PackageError, match=text) as caught:
        program = mixbackend.load(path, config=CONFIG)
        program(torch.ones(2, 8))
    assert caught.value.code == "package"


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def written(path: Path, content: dict[str, bytes], stored: bool = True) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return path


def test_a_copy_is_good(good: Path, tmp_path: Path) -> None:
    path = written(tmp_path / "copy.mix", members(good))
    assert mixbackend.load(path, config=CONFIG, strict=True)(torch.ones(2, 8)).shape == (2, 8)


def test_missing(tmp_path: Path) -> None:
    refused(tmp_path / "nothing.mix", "cannot be opened: No such file")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_cut_short(good: Path, tmp_path: Path, share: float) -> None:
    path = tmp_path / "cut.mix"
    path.write_bytes(good.read_bytes()[: int(share * good.stat().st_size)])
    refused(path, "cannot be loaded: it is no package, or was cut short")


@pytest.mark.parametrize("kind", ["text", "zip", "torch"])
def test_foreign(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "foreign.mix"
    if kind == "text":
        path.write_text("hello" * 100)
        refused(path, "it is no package, or was cut short")
    elif kind == "zip":
        written(path, {"manifest.json": b'{"format": "another"}'})
        refused(path, "is no package of mixbackend: its manifest is not that of a package")
    else:
        torch.export.save(torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)), path.with_suffix(".pt2"))
        refused(path.with_suffix(".pt2"), "is no package of mixbackend: it has no manifest")


def test_newer(good: Path, tmp_path: Path) -> None:
    content = members(good)
    content["manifest.json"] = json.dumps({"format": "mixbackend package", "version": 99, "new": 1}).encode()
    refused(written(tmp_path / "newer.mix", content), "has version 99 of the format, and this mixbackend reads up to 2")


def test_the_version_before(good: Path, tmp_path: Path) -> None:
    content = members(good)
    graph, manifest = json.loads(content["graphs/forward.json"]), json.loads(content["manifest.json"])
    assert graph["plan"].pop("relaid") is None
    changed = json.dumps(graph).encode()
    manifest["members"]["graphs/forward.json"] = {"sha256": hashlib.sha256(changed).hexdigest(), "size": len(changed)}
    content |= {"graphs/forward.json": changed, "manifest.json": json.dumps({**manifest, "version": 1}).encode()}
    assert (
        mixbackend.load(written(tmp_path / "old.mix", content), config=CONFIG, strict=True)(torch.ones(2, 8))
        is not None
    )


def test_every_member_that_is_changed_is_seen(good: Path, tmp_path: Path) -> None:
    for name, data in members(good).items():
        if name in ("manifest.json", "mixbackend.lock.yaml") or name.startswith("kits/"):
            continue
        place = len(data) // 2
        changed = {**members(good), name: data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]}
        refused(written(tmp_path / "changed.mix", changed), f"{name} does not have the bytes that the manifest says")
        missing = {key: value for key, value in members(good).items() if key != name}
        refused(written(tmp_path / "missing.mix", missing), f"{name} is missing")


def test_a_byte_of_the_file_that_is_changed_is_seen(good: Path, tmp_path: Path) -> None:
    """Wherever it is: the file is refused, or its results are right, since nobody reads the byte."""
    content = good.read_bytes()
    right = mixbackend.load(good, config=CONFIG)(torch.ones(2, 8))
    for place in range(7, len(content), max(1, len(content) // 40)):
        path = tmp_path / "byte.mix"
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :])
        try:
            result = mixbackend.load(path, config=CONFIG)(torch.ones(2, 8))
        except PackageError:
            continue
        assert torch.equal(result, right)


def manifest(change: Callable[[dict], None]) -> Callable[[dict[str, bytes]], dict[str, bytes]]:
    def rewrite(content: dict[str, bytes]) -> dict[str, bytes]:
        data = json.loads(content["manifest.json"])
        change(data)
        return {**content, "manifest.json": json.dumps(data).encode()}

    return rewrite


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda data: data.pop("methods"), "its manifest is not well formed: methods: Field required"),
        (lambda data: data["methods"].update(more=["graphs/none.json"]), "graphs/none.json is not in the manifest"),
        (lambda data: data["weights"].clear(), "graph forward cannot be read"),
        (
            lambda data: data["members"]["weights.safetensors"].update(size=10**12),
            "weights.safetensors does not lie in",
        ),
        (
            lambda data: data["members"]["graphs/forward.json"].update(size=10**6),
            "graphs/forward.json does not have 1000000",
        ),
        (
            lambda data: next(iter(data["weights"].values())).update(shape=[10**6, 10**6]),
            "a weight lies outside of the tensor",
        ),
    ],
)
def test_manifests_that_say_what_is_not_so(
    good: Path, tmp_path: Path, change: Callable[[dict], None], text: str
) -> None:
    refused(written(tmp_path / "wrong.mix", manifest(change)(members(good))), text)


def test_weights_that_are_packed_are_not_mapped(good: Path, tmp_path: Path) -> None:
    refused(
        written(tmp_path / "packed.mix", members(good), stored=False), "weights.safetensors does not lie in it as it"
    )
