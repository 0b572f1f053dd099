"""A backend object is its configuration: compiled models that hold it are copied, saved, averaged and loaded."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.swa_utils import AveragedModel
from warm_processes import WarmProcesses

import mixbackend
from mixbackend.configuration import Config

RULES = {
    "backends": ["codegen", "eager"],
    "rules": [{"match": {"op": "aten.relu"}, "prefer": "eager", "factor": 0.5}],
    "min_region": {"codegen": 1},
}


def compiled() -> tuple[torch.nn.Module, Any, torch.Tensor]:
    """A small model, the same compiled and called once, and an input."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    x = torch.randn(2, 4)
    wrapped = torch.compile(model, backend=mixbackend.auto({"backends": ["codegen", "eager"]}))
    wrapped(x)
    return model, wrapped, x


def saved_and_loaded(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, saved_and_loaded, AveragedModel])
def test_a_compiled_model_is_copied(copied: Any) -> None:
    model, wrapped, x = compiled()
    other = copied(wrapped)
    torch.testing.assert_close(other(x), model(x))
    with torch.no_grad():
        next(other.parameters()).add_(1)
    assert not torch.allclose(other(x), model(x))
    torch.testing.assert_close(wrapped(x), model(x))


def test_averages_of_a_compiled_model_are_those_of_the_model() -> None:
    model, wrapped, x = compiled()
    averages, expected = AveragedModel(wrapped), AveragedModel(model)
    for averaged in (averages, expected):
        averaged.update_parameters(model)
    with torch.no_grad():
        next(model.parameters()).add_(1)
    for averaged in (averages, expected):
        averaged.update_parameters(model)
    torch.testing.assert_close(averages(x), expected(x))


@pytest.mark.parametrize("form", ["nothing", "mapping", "file", "Config"])
def test_every_form_of_configuration_survives(form: str, tmp_path: Path) -> None:
    path = tmp_path / "prefs.yaml"
    path.write_text(
        "version: 1\nbackends: [codegen, eager]\nmin_region: {codegen: 1}\n"
        "rules:\n  - match: {op: aten.relu}\n    prefer: eager\n    factor: 0.5\n"
    )
    sources: dict[str, Any] = {"nothing": None, "mapping": RULES, "file": path, "Config": Config(backends=("eager",))}
    backend = mixbackend.auto(sources[form])
    assert copy.deepcopy(backend) is backend
    assert copy.copy(backend) is backend
    assert pickle.loads(pickle.dumps(backend)) is backend
    path.unlink()
    assert pickle.loads(pickle.dumps(backend)).config == backend.config


def test_keyword_arguments_that_hold_it_are_copied() -> None:
    keywords = {"backend": mixbackend.auto({"backends": ["eager"]}), "options": {"verify.when": "off"}}
    model = torch.nn.Linear(3, 3)
    x = torch.randn(2, 3)
    torch.testing.assert_close(torch.compile(model, **copy.deepcopy(keywords))(x), model(x))


_OTHER = """
import pickle, sys
backend = pickle.load(open(sys.argv[1], "rb"))
print(backend.config.backends, backend.config.rules[0].prefer, backend.config.min_region)
"""


def test_another_process_gets_the_same_configuration(warm: WarmProcesses, tmp_path: Path) -> None:
    path = tmp_path / "backend.pickle"
    path.write_bytes(pickle.dumps(mixbackend.auto(RULES)))
    ran = warm.run(_OTHER, str(path), cwd=tmp_path)
    config = mixbackend.auto(RULES).config
    assert ran.stdout.strip() == f"{config.backends} {config.rules[0].prefer} {config.min_region}", ran.stderr


_PLUGIN = """
import pickle, sys, mixbackend
from mixbackend.backends.eager import EagerBackend
data = open(sys.argv[1], "rb").read()
try:
    pickle.loads(data)
except mixbackend.MixbackendError as error:
    print("no backend is called 'mine'" in str(error))

@mixbackend.register_backend
class Mine(EagerBackend):
    name = "mine"

print(pickle.loads(data).config.backends)
"""


def test_a_plugin_registered_by_hand_goes_by_its_name(warm: WarmProcesses, tmp_path: Path) -> None:
    from mixbackend import registry
    from mixbackend.backends.eager import EagerBackend

    class Mine(EagerBackend):
        name = "mine"

    with registry.isolated_registry(EagerBackend(), Mine()):
        path = tmp_path / "backend.pickle"
        backend = mixbackend.auto({"backends": ["mine", "eager"]})
        path.write_bytes(pickle.dumps(backend))
        assert pickle.loads(path.read_bytes()) is backend
    ran = warm.run(_PLUGIN, str(path), cwd=tmp_path)
    assert ran.stdout.split("\n")[:2] == ["True", "('mine', 'eager')"], ran.stdout + ran.stderr
