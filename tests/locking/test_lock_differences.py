"""Whatever differs from a lock file: an error under ``frozen``, with the difference in words; else an event."""

from __future__ import annotations

import pytest
import torch
from locking_bench import COMMAND, VALUE, Bench, Small, edit, error_of, locked
from torch import nn

from mixbackend.compile import driver
from mixbackend.locking.reading import read_lock
from mixbackend.locking.text import write_lock

FACTS = [
    ("torch: ", "torch: 1.2.3 # ", "- torch: 1.2.3", "+ torch: 2."),
    ("mixbackend: 0", "mixbackend: 9", "- mixbackend: 9", "+ mixbackend: 0"),
    ("threads: ", "threads: 77 # ", "- threads: 77", "+ threads: "),
    ("device: cpu", "device: cpu Abacus", "- device: cpu Abacus", "+ device: cpu"),
    ("weights: constant", "weights: live", "- weights: live", "+ weights: constant"),
    ("lowering=", "lowering=old", "- fingerprint of codegen: lowering=old", "+ fingerprint of codegen: lowering="),
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("old", "new", "minus", "plus"), FACTS, ids=[fact[0].split(":")[0] for fact in FACTS])
def test_frozen_facts(bench: Bench, small: Small, old: str, new: str, minus: str, plus: str) -> None:
    locked(bench, small)
    edit(bench, (old, new))
    text = error_of(lambda: bench.run(small, [VALUE], **bench.frozen()))
    assert minus in text and plus in text and "inference-0" in text
    assert f"`{COMMAND} --lock {bench.lock}`" in text
    run = bench.run(small, [VALUE])
    (told,) = run.told()
    assert "placed as" in told and minus.split(": ")[0].removeprefix("- ") in told
    torch.testing.assert_close(run.outputs[0], small(VALUE))


def test_all_facts_and_the_plan_at_once(bench: Bench, small: Small) -> None:
    locked(bench, small)
    edit(bench, ("torch: ", "torch: 1.2.3 # "), ("threads: ", "threads: 77 # "), ("device: cpu", "device: cpu Abacus"))
    move_to_refusing_backend(bench)
    text = error_of(lambda: bench.run(small, [VALUE], **bench.frozen()))
    for part in ("- torch: 1.2.3", "- threads: 77", "- device: cpu Abacus", "onednn refuses aten.native_layer_norm"):
        assert part in text, text


def move_to_refusing_backend(bench: Bench) -> None:
    """The region of the last normalisation to a backend that has none."""
    lines = bench.lock.read_text().splitlines()
    norm = max(number for number, line in enumerate(lines) if "native_layer_norm" in line and "ops:" in line)
    backend = max(number for number, line in enumerate(lines[:norm]) if "    backend:" in line)
    lines[backend] = "    backend: onednn"
    bench.lock.write_text("\n".join(lines) + "\n")


def test_an_op_on_a_backend_that_refuses_it(bench: Bench, small: Small) -> None:
    first = locked(bench, small)
    move_to_refusing_backend(bench)
    text = error_of(lambda: bench.run(small, [VALUE], **bench.frozen()))
    assert "onednn refuses aten.native_layer_norm.default" in text and "(layers.1.norm)" in text
    run = bench.run(small, [VALUE])
    assert run.plans() == first.plans()
    assert any("placed as usual" in told and "onednn refuses" in told for told in run.told())


def test_rules_hold_for_locked_plans(bench: Bench, small: Small) -> None:
    locked(bench, small)
    rules = [{"match": {"op": "aten.native_layer_norm"}, "forbid": "codegen"}]
    assert "codegen" in read_lock(bench.lock).graphs[0].backends()
    text = error_of(lambda: bench.run(small, [VALUE], rules=rules, **bench.frozen()))
    assert "codegen refuses aten.native_layer_norm.default" in text and "forbid codegen" in text


def test_a_backend_that_is_not_here(bench: Bench, small: Small) -> None:
    locked(bench, small)
    text = error_of(lambda: bench.run(small, [VALUE], backends=["onednn", "eager"], **bench.frozen()))
    assert "+ backend codegen: cannot be used here" in text and "needs codegen, which cannot be used here" in text
    run = bench.run(small, [VALUE], backends=["onednn", "eager"])
    assert "codegen" not in str(run.plans()) and any("placed as usual" in told for told in run.told())
    torch.testing.assert_close(run.outputs[0], small(VALUE))


def test_regions_that_need_one_another(bench: Bench) -> None:
    """A chain whose middle is in another region than both of its ends."""

    class Chain(nn.Module):
        def forward(self, value: torch.Tensor) -> torch.Tensor:
            return value.sin().cos().tan()

    locked(bench, Chain())
    lines = bench.lock.read_text().splitlines()
    start = lines.index("  regions:")
    cut = ["aten.sin.default", "aten.cos.default", "aten.tan.default"]
    bench.lock.write_text("\n".join([*lines[: start + 1], *region("r0", cut, [0, 2]), *region("r1", cut, [1])]) + "\n")
    text = error_of(lambda: bench.run(Chain(), [VALUE], **bench.frozen()))
    assert "! regions depend on each other: r0 -> r1" in text or "! regions depend on each other: r1 -> r0" in text
    run = bench.run(Chain(), [VALUE])
    torch.testing.assert_close(run.outputs[0], Chain()(VALUE))
    assert any("placed as usual: regions depend on each other" in told for told in run.told())


def region(name: str, ops: list[str], places: list[int]) -> list[str]:
    counts = ", ".join(f"{ops[place]}: 1" for place in places)
    nodes = ", ".join(f"{ops[place]}@{place}" for place in places)
    head = [f"  - region: {name}", "    backend: eager", "    estimated_s: 0.0", f"    ops: {{{counts}}}"]
    return [*head, "    nodes:", f"      top level: [{nodes}]"]


def test_a_node_that_is_left_out(bench: Bench) -> None:
    class Chain(nn.Module):
        def forward(self, value: torch.Tensor) -> torch.Tensor:
            return value.sin().cos().tan()

    locked(bench, Chain())
    lines = bench.lock.read_text().splitlines()
    ops = ["aten.sin.default", "aten.cos.default", "aten.tan.default"]
    bench.lock.write_text("\n".join([*lines[: lines.index("  regions:") + 1], *region("r0", ops, [0, 1])]) + "\n")
    assert "! node %tan is in no region" in error_of(lambda: bench.run(Chain(), [VALUE], **bench.frozen()))


def test_a_graph_that_is_not_in_the_file(bench: Bench, small: Small) -> None:
    locked(bench, small)
    deeper = nn.Sequential(small, nn.Linear(64, 8)).eval()
    text = error_of(lambda: bench.run(deeper, [VALUE], **bench.frozen()))
    assert "the graph is not in the file; the most similar entry is inference-0" in text
    assert "- aten.addmm.default: 4 times" in text and "+ aten.addmm.default: 5 times" in text
    run = bench.run(deeper, [VALUE])
    (told,) = run.told()
    assert "placed as usual: the graph is not in the file" in told
    torch.testing.assert_close(run.outputs[0], deeper(VALUE))


def test_other_weights_are_the_same_graph_and_other_widths_another(bench: Bench, small: Small) -> None:
    locked(bench, small)
    torch.manual_seed(1)
    other = Small().eval()
    run = bench.run(other, [VALUE], **bench.frozen(), on_failure="raise")
    torch.testing.assert_close(run.outputs[0], other(VALUE))
    wide = Small(128).eval()
    text = error_of(lambda: bench.run(wide, [torch.randn(4, 128)], **bench.frozen()))
    assert "not in the file" in text and "[4, 128]" in text


def test_a_file_that_is_missing_or_damaged(bench: Bench, small: Small) -> None:
    text = error_of(lambda: bench.run(small, [VALUE], **bench.frozen()))
    assert "cannot be read: No such file" in text and f"--lock {bench.lock}" in text
    run = bench.run(small, [VALUE])
    (told,) = run.told()
    assert "placed without the lock file" in told
    bench.write(run)
    edit(bench, ("  - region: r0", " - region: r0"))
    text = error_of(lambda: bench.run(small, [VALUE], **bench.frozen()))
    assert "not valid YAML" in text
    again = bench.run(small, [VALUE])
    assert again.plans() == run.plans() and any("not valid YAML" in told for told in again.told())


class Branching(nn.Module):
    """Its graph carries subgraphs."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return torch.cond(value.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (value,))


def test_a_graph_without_text(bench: Bench, small: Small) -> None:
    locked(bench, small)
    text = error_of(lambda: bench.run(Branching(), [VALUE], **bench.frozen()))
    assert "inference-0.true_graph_0" in text and "the graph is not in the file" in text, "its bodies are asked first"
    run = bench.run(Branching(), [VALUE])
    torch.testing.assert_close(run.outputs[0], Branching()(VALUE))
    assert any("has no text" in told for told in run.told())


def test_nothing_runs_in_eager_instead_of_frozen(bench: Bench, small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of ours may not end in another placement than the locked one."""
    locked(bench, small)

    def fail(*arguments: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(driver, "propose", fail)
    with pytest.raises(Exception, match="a fault"):
        bench.run(small, [VALUE], **bench.frozen())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dynamic", [True, False])
def test_a_backward_that_is_not_in_the_file(bench: Bench, dynamic: bool) -> None:
    """With symbolic sizes torch compiles the backward early, and tries again when it is called."""
    model = Small()
    file = bench.write(bench.run(model, [VALUE], train=True, dynamic=dynamic))
    forward = [graph for graph in file.graphs if graph.phase == "forward"]
    write_lock(bench.lock, file.model_copy(update={"graphs": tuple(forward)}))
    text = error_of(lambda: bench.run(model, [VALUE], train=True, dynamic=dynamic, **bench.frozen()))
    assert "backward-" in text and "the backward graph is not in the file, nor one like it" in text
    run = bench.run(model, [VALUE], train=True, dynamic=dynamic)
    assert any("the backward graph is not in the file" in told for told in run.told())


def test_another_graph_beside_a_locked_one(bench: Bench, small: Small) -> None:
    """An entry names one graph, not a model: what else comes up is told."""
    locked(bench, small)
    other = nn.Sequential(nn.Linear(64, 3), nn.Sigmoid()).eval()
    run = bench.run(small, [VALUE])
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(other, backend=run.mixture)(VALUE), other(VALUE))
    events = run.mixture.report().events
    assert [event.graph for event in events if event.kind == "lock"] == ["inference-1"]
