"""A package of the plan that was the fastest where it was made."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import mixbackend
from mixbackend.cli import main
from mixbackend.configuration import Config, load_config
from mixbackend.package import exporting
from mixbackend.package.recording import packaged_backends, recording_environment
from mixbackend.reporting import Report


def test_processes_that_measure_have_the_backends_of_packages(tmp_path: Path) -> None:
    config = Config().with_options({"cache": {"dir": str(tmp_path)}})
    environment, _ = recording_environment(config)
    names = [item.name for item in packaged_backends(config).backends]
    assert environment.config.backends is not None and list(environment.config.backends) == names
    assert "inductor" not in names and "eager" in names


def test_the_command_measures_where_it_is_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def export(program: object, path: Path, *, config: Config) -> Report:
        asked.append(load_config(config).search.mode)
        path.write_bytes(b"")
        return Report((), ())

    monkeypatch.setattr(exporting, "export", export)
    saved = tmp_path / "relu.pt2"
    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.ones(2),)), saved)
    for more in ([], ["--measure"]):
        with pytest.raises(SystemExit) as left:
            main(["export", str(saved), str(tmp_path / "relu.mix"), *more])
        assert not left.value.code
    assert asked == ["estimate", "measure"]
    assert capsys.readouterr().out.count("by estimates") == 1


@pytest.mark.nightly
def test_the_fastest_plan_is_in_the_package(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.GELU(), torch.nn.Linear(512, 64)).eval()
    x = torch.randn(256, 64)
    config = {"search": {"mode": "measure", "budget_s": 60}, "cache": {"dir": str(tmp_path / "cache")}}
    report = mixbackend.export(torch.export.export(model, (x,)), tmp_path / "model.mix", config=config)
    (graph,) = report.graphs
    assert graph.tuning is not None and len(graph.tuning.timed()) > 1
    assert not any("inductor" in trial.choice for trial in graph.tuning.trials)
    loaded = mixbackend.load(tmp_path / "model.mix", strict=True)
    with torch.no_grad():
        torch.testing.assert_close(loaded(x), model(x))
    made, here = graph.plan, loaded.report().graphs[0].plan
    assert [region.backend for region in here.regions] == [region.backend for region in made.regions]
