"""The page of a report: its data, what it says of odd plans, and what a browser makes of it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

import mixbackend
from mixbackend.cli import main
from mixbackend.contracts import NodeRef, Plan, PlannedRegion, Refusal
from mixbackend.contracts.numerics import Accuracy
from mixbackend.reporting import Event, GraphRecord, RegionRecord, Report
from mixbackend.reporting.page import Told, page_data
from mixbackend.reporting.page.data import flame
from mixbackend.reporting.page.hints import hints

ROOT = Path(__file__).parents[2]
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
IMAGES = os.environ.get("MIXBACKEND_SCREENSHOTS", "")
"""Where screenshots go: ``docs/images`` makes those of the documentation anew."""


class Outside(HTMLParser):
    """Everything that a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [item for item in attrs if item[0] in ("src", "href", "srcset", "data", "action")]


def embedded(text: str) -> dict[str, Any]:
    """The data of a page."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found.group(1))


def data_of(report: Report) -> dict[str, Any]:
    """What a page of it shows."""
    return page_data(report.graphs, Told("", report.to_dict(), ""))


def test_the_page_holds_the_report_and_loads_nothing(record: GraphRecord, tmp_path: Path) -> None:
    odd = Event("fallback", "inference-0", "", "", "</script><script>alert(2)</script>")
    report = Report((record,), (odd,))
    report.to_html(tmp_path / "page.html", title="<b>a title</b>")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>") and "&lt;b&gt;a title" in text
    assert "<script>alert" not in text
    assert embedded(text)["report"] == report.to_dict()
    outside = Outside()
    outside.feed(text)
    assert outside.found == []
    assert "@import" not in text and "url(" not in re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert len(text) < 3_000_000


def test_nodes_have_regions_seconds_and_readers(record: GraphRecord) -> None:
    (graph,) = data_of(Report((record,)))["graphs"]
    assert [(row[0], row[4]) for row in graph["nodes"]] == [("mm", 0), ("mm_1", 0), ("gelu", 0), ("add", 1)]
    # What was measured of a region, shared out among its nodes; the other one is estimated.
    seconds = [row[5] for row in graph["nodes"]]
    assert sum(seconds[:3]) == pytest.approx(9e-4) and seconds[3] == 2e-5
    assert graph["edges"] == [[0, 1], [1, 2], [2, 3]]


def test_edges_lead_through_numbers(record: GraphRecord) -> None:
    nodes = list(record.graph.nodes)
    number = next(place for place, node in enumerate(nodes) if node.is_symbolic)
    nodes[number] = replace(nodes[number], arguments=(("self", NodeRef("mm")),))
    nodes[-1] = replace(nodes[-1], arguments=(("self", NodeRef("gelu")), ("other", NodeRef(nodes[number].name))))
    graph = replace(record.graph, nodes=tuple(nodes))
    (data,) = data_of(Report((replace(record, graph=graph),)))["graphs"]
    assert [0, 3] in data["edges"]


def test_seconds_of_nodes_add_up_to_the_estimate() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Softmax(-1))
    with torch.no_grad():
        report = mixbackend.explain(model, torch.randn(8, 64))
    (record,) = report.graphs
    assert record.counterfactuals is not None
    found = record.counterfactuals.seconds()
    assert set(found) <= {node.name for node in record.graph.placed_nodes}
    assert sum(found.values()) == pytest.approx(record.plan.estimated_s, rel=1e-6)
    (graph,) = data_of(report)["graphs"]
    assert sum(row[5] for row in graph["nodes"]) == pytest.approx(
        sum(record.record(region).measured_s or region.estimated_s for region in record.plan.regions)
    )
    # Every region was held against float64 at its first call.
    errors = [region["error"] for region in report.to_dict()["graphs"][0]["regions"]]
    assert all(error is not None and error["error"] < 1e-5 for error in errors), errors


def test_accuracy_is_the_worst_beside_eager() -> None:
    good, bad, exact = Accuracy(1e-7, 2e-7), Accuracy(3e-7, 2e-7), Accuracy(0.0, 0.0)
    assert good.worse(None) is good
    assert good.worse(bad) is bad and bad.worse(good) is bad
    assert exact.worse(bad) is bad and Accuracy(1e-9, 0.0).worse(bad).ratio == float("inf")


def test_a_small_region_between_two_of_another_backend_is_told(record: GraphRecord) -> None:
    regions = (
        PlannedRegion("r0", "codegen", ("mm",), estimated_s=1e-3),
        PlannedRegion("r1", "eager", ("mm_1",), estimated_s=3e-4),
        PlannedRegion("r2", "codegen", ("gelu", "add"), estimated_s=1e-3),
    )
    refusal = Refusal("mm_1", "codegen", "dtype", "float64 is not taken")
    plan = Plan("inference-0", "inference", False, regions, (refusal,), estimated_s=2.3e-3)
    (hint,) = hints(replace(record, plan=plan, regions=(), advice=()))
    assert hint.regions == ("r1",) and hint.seconds == 3e-4
    assert hint.text == (
        "r1, 1 node (mm) on eager between regions of codegen, costs 0.300 ms; "
        "codegen refuses mm_1: float64 is not taken"
    )
    for changed in (
        replace(regions[1], backend="codegen"),
        replace(regions[1], estimated_s=1e-6),
    ):
        quiet = replace(plan, regions=(regions[0], changed, regions[2]))
        assert hints(replace(record, plan=quiet, regions=(), advice=())) == ()


def test_regions_that_take_much_longer_than_estimated_are_told(record: GraphRecord) -> None:
    slow = replace(record, regions=(RegionRecord("r0", measured_s=5e-3),), advice=())
    (hint,) = hints(slow)
    assert hint.regions == ("r0",) and hint.seconds == pytest.approx(4e-3) and "onnxruntime took 5.00 ms" in hint.text
    assert hints(replace(slow, selection={"calls": 1})) == ()
    assert hints(replace(record, advice=())) == ()
    assert [hint.text for hint in hints(record)] == [str(record.advice[0])]


def test_stacks_become_a_tree_without_callers_and_crumbs() -> None:
    stacks = {("main", "run", "plan"): 2.0, ("main", "run", "build", "g++"): 5.0, ("main", "crumb"): 0.001, (): 0.01}
    tree = flame(stacks)
    assert tree["value"] == pytest.approx(7.011)
    assert [(child["name"], child["value"]) for child in tree["children"]] == [("build", 5.0), ("plan", 2.0)]
    assert tree["children"][0]["children"] == [{"name": "g++", "value": 5.0, "children": []}]
    assert flame({("only",): 1.0}) == {"name": "all", "value": 1.0, "children": []}


def test_the_libraries_are_what_npm_has() -> None:
    subprocess.run([sys.executable, str(ROOT / ".ci/page_libraries"), "--check"], check=True)


def test_the_command_writes_a_page_that_compares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = "torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), (torch.ones(2, 4),), {}"
    (tmp_path / "small_factory.py").write_text(f"import torch\ndef make():\n    return {made}\n")
    (tmp_path / "earlier.json").write_text('{"schema": 1, "graphs": []}')
    (tmp_path / "other.json").write_text("[]")
    monkeypatch.chdir(tmp_path)
    explain = ["explain", "small_factory:make", "--config", str(small_config(tmp_path))]
    for wrong in (["--against", "earlier.json"], ["--html", "page.html", "--against", "other.json"]):
        with pytest.raises(SystemExit) as left:
            main([*explain, *wrong])
        assert left.value.code == 2 and not Path("page.html").exists()
    with contextlib.suppress(SystemExit):
        main([*explain, "--html", "page.html", "--against", "earlier.json"])
    data = embedded(Path("page.html").read_text(encoding="utf-8"))
    assert data["against"] == {"schema": 1, "graphs": []}
    assert data["title"] == "small_factory:make, inference" and data["compiling"]["value"] > 0


def small_config(folder: Path) -> Path:
    """Two backends, which start quickly."""
    path = folder / "small.yaml"
    path.write_text("backends: [onednn, eager]\n")
    return path


def browsed(file: Path, view: str, height: int, image: Path | None = None) -> str:
    """The page's elements after its scripts have run, with nothing but files to be had; an image of it, if wanted."""
    assert BROWSER is not None
    what = ["--dump-dom"] if image is None else [f"--screenshot={image}"]
    switches = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--timeout=5000"]
    network = ["--host-resolver-rules=MAP * ~NOTFOUND", "--disable-background-networking"]
    size = [f"--window-size=1500,{height}", f"--user-data-dir={file.parent / 'profile'}"]
    log = ["--enable-logging=stderr", "--run-all-compositor-stages-before-draw"]
    command = [BROWSER, *switches, *network, *size, *log, *what, f"{file.as_uri()}#show={view}"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    wrong = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not wrong, wrong
    return done.stdout


@pytest.mark.skipif(BROWSER is None, reason="no Chromium")
def test_a_browser_shows_every_view(record: GraphRecord, tmp_path: Path) -> None:
    other = replace(record, graph=replace(record.graph, id="inference-1"))
    before = Report((record,)).to_dict()
    before["graphs"][0]["regions"][0]["backend"] = "tensorrt"
    event = Event("fallback", "inference-0", "", "", "<b>what happened</b>")
    file = tmp_path / "page.html"
    stacks = {("a", "b"): 1.0, ("a", "c"): 2.0}
    Report((record, other), (event,)).to_html(file, against=before, stacks=stacks)
    wanted = {
        "graph,0,r1": ('id="canvas"', "&lt;script&gt;alert(1)", "aten.mm".removeprefix("aten.")),
        "time": ("d3-flame-graph-label", "layer", "gelu"),
        "regions": ("onnxruntime", "same as inference-0/r9", "from cache"),
        "compiling": ("d3-flame-graph-label", "c 2000"),
        "compare": ("Nodes that moved: 3 of 4", "tensorrt"),
        "events": ("&lt;b&gt;what happened",),
        "text": ("each backend alone",),
    }
    for view, texts in wanted.items():
        dom = browsed(file, view, 1000)
        assert 'data-ready="yes"' in dom and f'data-shown="{view.split(",")[0]}"' in dom
        visible = re.sub(r"<script.*?</script>", "", dom, flags=re.DOTALL)
        missing = [text for text in texts if text not in visible]
        assert not missing, (view, missing)


SHOWN = {
    "resnet50": (("resnet50",), "graph", 1000),
    "bert_training": (("hf_Bert", "--train"), "time,1", 1000),
    "mixed_plan": (("hf_Bert", "--config", "mixed.yaml"), "graph,0,r2", 1000),
}
"""Screenshots: arguments of ``mixbackend explain``, what is shown, pixels."""


MIXED = """
rules:
  - {match: {module: bert.encoder.layer.*.attention}, require: inductor}
  - {match: {module: bert.encoder.layer.*.intermediate}, require: codegen}
"""
"""So that the plan is one of several backends whatever the machine is at."""


@pytest.mark.nightly
@pytest.mark.skipif(BROWSER is None, reason="no Chromium")
@pytest.mark.parametrize("name", SHOWN)
def test_screenshots(name: str, tmp_path: Path) -> None:
    arguments, view, height = SHOWN[name]
    file, image = tmp_path / "page.html", Path(IMAGES or tmp_path).resolve() / f"report_{name}.png"
    run = [sys.executable, "-m", "mixbackend", "explain", *arguments, "--html", str(file)]
    (tmp_path / "mixed.yaml").write_text(MIXED)
    subprocess.run(run, check=True, capture_output=True, timeout=600, cwd=tmp_path)
    assert file.stat().st_size < 3_000_000
    assert 'data-ready="yes"' in browsed(file, view, height)
    browsed(file, view, height, image)
    assert image.read_bytes().startswith(b"\x89PNG") and image.stat().st_size > 20_000
