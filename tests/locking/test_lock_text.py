"""The file itself: round trips, equal bytes, and everything that can be wrong with one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from locking_bench import Bench, Small

from mixbackend.contracts import LockError
from mixbackend.locking.making import merged
from mixbackend.locking.model import LockedGraph, LockedRegion, LockFile, MadeWith
from mixbackend.locking.reading import LockProblemsError, read_lock
from mixbackend.locking.text import lock_text, write_lock

MADE_WITH = {
    "mixbackend": "0.1.0",
    "torch": "2.13.0",
    "threads": 2,
    "backends": [
        {"name": "codegen", "version": "1", "fingerprint": "lowering=1 a: b, {c} & #d"},
        {"name": "eager", "version": "", "fingerprint": ""},
    ],
}


def graph(number: int = 0, made_by: str = "mixbackend tune a", **changes: object) -> LockedGraph:
    regions = [
        {
            "region": "r0",
            "backend": "codegen",
            "estimated_s": 1.25e-05,
            "measured_s": 3.0,
            "ops": {"aten.add.Tensor": 2, "aten.mm.default": 1},
            "nodes": {"layers.0": ["aten.mm.default@0", "aten.add.Tensor@1"], "top level": ["aten.add.Tensor@4"]},
            "copies": ["aten.t.default@3"],
            "matches": [{"pattern": "mm_add", "nodes": ["aten.mm.default@0", "aten.add.Tensor@1"]}],
        },
        {
            "region": "r1",
            "backend": "eager",
            "estimated_s": 0.0,
            "ops": {"aten.t.default": 1},
            "nodes": {"layers.0": ["aten.t.default@3"]},
        },
    ]
    return LockedGraph.model_validate(
        {
            "graph": f"inference-{number}",
            "made_by": made_by,
            "phase": "inference",
            "dynamic": False,
            "device": "cpu EPYC",
            "weights": "constant",
            "layout": "as_traced",
            "key": f"{number:064x}".replace("0", "a"),
            "inputs": ['activation tensor(float32, [4, 8], [8, 1], "cpu")'],
            "estimated_s": 1.25e-05,
            "single_backend_s": {"eager": 0.001},
            "chosen": "mixture of a, b, as_traced",
            "measured": [{"choice": "mixture", "median_s": 1e-06}, {"choice": "eager", "median_s": 0.25}],
            "regions": regions,
            **changes,
        }
    )


def file(*graphs: LockedGraph, joints: tuple[object, ...] = ()) -> LockFile:
    return LockFile.model_validate({"made_with": MADE_WITH, "graphs": graphs or (graph(),), "joints": joints})


def problems(path: Path) -> list[str]:
    with pytest.raises(LockProblemsError) as caught:
        read_lock(path)
    assert caught.value.code == "lock" and str(path) in caught.value.hint
    return [str(problem).removeprefix(f"{path}:") for problem in caught.value.problems]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "mixbackend.lock.yaml"
    write_lock(path, file())
    return path


def edit(path: Path, *changes: tuple[str, str]) -> None:
    text = path.read_text()
    for old, new in changes:
        assert text.count(old) == 1, (old, text)
        text = text.replace(old, new)
    path.write_text(text)


def test_what_is_read_is_what_was_written(written: Path) -> None:
    joint = {
        "joint": "joint-0",
        "made_by": "m",
        "layout": "channels_last",
        "key": "f" * 64,
        "saved": ["aten.mm.default@9"],
    }
    whole = file(graph(), graph(1, dynamic=True, measured=[], chosen=""), joints=(joint,))
    write_lock(written, whole)
    assert read_lock(written) == whole
    before = written.read_bytes()
    write_lock(written, read_lock(written))
    assert written.read_bytes() == before
    assert not list(written.parent.glob(".*")), "nothing is left beside the file"


def test_the_text_is_for_people(written: Path) -> None:
    text = written.read_text()
    assert text.startswith("# ") and max(map(len, text.splitlines())) <= 120 and " \n" not in text
    assert "      layers.0: [aten.mm.default@0, aten.add.Tensor@1]\n" in text
    assert "      top level: [aten.add.Tensor@4]\n" in text
    assert "    ops: {aten.add.Tensor: 2, aten.mm.default: 1}\n" in text
    assert written.stat().st_mode & 0o777 == 0o644


def test_a_file_keeps_its_permissions(written: Path) -> None:
    written.chmod(0o664)
    write_lock(written, file())
    assert written.stat().st_mode & 0o777 == 0o664


def test_a_plan_comes_out_as_placement_takes_it() -> None:
    choice = graph().choice()
    assert choice.locked and choice.layout == "as_traced" and choice.plan is not None
    first, second = choice.plan.regions
    assert first.nodes == ("aten.mm.default@0", "aten.add.Tensor@1", "aten.add.Tensor@4")
    assert first.matches == (("mm_add", ("aten.mm.default@0", "aten.add.Tensor@1")),)
    assert (second.backend, second.copies, first.copies) == ("eager", (), ("aten.t.default@3",))
    assert choice.plan.single_backend_s == (("eager", 0.001),)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("changes", "line", "message"),
    [
        ([("version: 1\nmade", "version: 2\nmade")], 4, "version: should be 1; got 2"),
        ([("threads: 2", "threads: two")], 8, "made_with.threads: should be a valid integer"),
        ([("phase: inference", "phase: infernce")], 0, "did you mean 'inference'?"),
        ([("chosen: mixture", "choosen: mixture")], 0, "choosen: unknown key; did you mean 'chosen'?"),
        ([("backend: codegen", "backend: codgen")], 0, "does not list 'codgen'; did you mean 'codegen'?"),
        ([("region: r1", "region: r0")], 0, "graphs[0].regions[1].region: r0 is there twice"),
        (
            [("layers.0: [aten.t.default@3]", "layers.0: [aten.neg.default@4]"), ("{aten.t.d", "{aten.neg.d")],
            0,
            "aten.neg.default@4 is in r0 already as aten.add.Tensor@4",
        ),
        ([("layers.0: [aten.t.default@3]", "layers.0: [aten.t.default]")], 0, "should be an operator and its place"),
        ([("{aten.t.default: 1}", "{aten.t.default: 2}")], 0, "says aten.t.default 2 times, nodes hold it 1 times"),
        ([("measured_s: 3.0", "measured_s: -3.0")], 0, "should be greater than or equal to 0"),
        ([("measured_s: 3.0", "measured_s: .nan")], 0, "measured_s: should be a finite number"),
        ([("key: aaaa", "key: aazz")], 0, "key: should be 64 hexadecimal digits"),
        ([("copies: [aten.t.default@3]", "copies: []")], 0, ""),
    ],
)  # fmt: skip
def test_one_mistake_is_one_problem_with_its_line(
    written: Path, changes: list[tuple[str, str]], line: int, message: str
) -> None:
    edit(written, *changes)
    if not message:
        read_lock(written)
        return
    (problem,) = problems(written)
    assert message in problem
    found = int(problem.split(":")[0])
    assert found == line if line else found > 10


def test_all_mistakes_come_at_once(written: Path) -> None:
    write_lock(written, file(graph(), graph(1, dynamic=True)))
    text = written.read_text().replace("backend: eager", "backend: eagr", 1)
    written.write_text(text.replace("threads: 2", "threads: 0").replace("dynamic: true", "dynamic: yes"))
    found = problems(written)
    assert len(found) == 2, found
    assert "threads: should be greater" in found[0] and "graphs[1].dynamic: should be a valid boolean" in found[1]
    written.write_text(text.replace("dynamic: true", "dynamic: yes"))
    found = problems(written)
    assert len(found) == 2, found
    assert "does not list 'eagr'; did you mean 'eager'?" in found[0] and "graphs[1].dynamic" in found[1]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "should be 1; got None"),
        ("- a\n- b\n", "should be a mapping"),
        ("version: 1\ngraphs: {}\n", "graphs: should be a list of graphs"),
        ("version: 1\n  made_with: {}\n", "not valid YAML"),
        ("version: 1\nmade_with: !!python/object/apply:os.system [echo]\ngraphs: []\n", "tags such as"),
        ("version: 1\nversion: 1\n", "not valid YAML"),
    ],
)
def test_what_is_no_lock_file(written: Path, text: str, message: str) -> None:
    written.write_text(text)
    assert any(message in problem for problem in problems(written))


def test_wrong_indentation_has_its_line(written: Path) -> None:
    number = next(
        index for index, line in enumerate(written.read_text().splitlines(), 1) if line.strip() == "backend: eager"
    )
    edit(written, ("    backend: eager", "   backend: eager"))
    (problem,) = problems(written)
    assert "not valid YAML" in problem and abs(int(problem.split(":")[0]) - number) <= 1


def test_no_file_and_not_text(tmp_path: Path) -> None:
    with pytest.raises(LockError, match=r"none\.yaml: cannot be read: No such file"):
        read_lock(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(LockError, match="cannot be read"):
        read_lock(tmp_path / "binary.yaml")


def test_aliases_do_not_fill_the_memory(written: Path) -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [f"{b}: &{b} [{', '.join(['*' + a] * 9)}]" for a, b in zip("abcdefghi", "bcdefghij", strict=True)]
    written.write_text("\n".join(lines))
    assert any("more than 100000 values" in problem for problem in problems(written))


def test_two_entries_of_one_graph(written: Path) -> None:
    write_lock(written, file(graph(), graph(0, graph="inference-7")))
    (problem,) = problems(written)
    assert "graphs[1].key: is that of inference-0 too" in problem


# --- several runs in one file ----------------------------------------------------------------------------------------


def made_with(**changes: object) -> MadeWith:
    return MadeWith.model_validate({**MADE_WITH, **changes})


def test_a_run_replaces_what_its_own_command_made(written: Path) -> None:
    old = file(graph(0), graph(1), graph(2, "mixbackend tune b"))
    moved = graph(1).regions[1].model_copy(update={"backend": "codegen"})
    new, change = merged(
        old, made_with(), (graph(1, regions=(graph(1).regions[0], moved)), graph(3)), (), "mixbackend tune a"
    )
    assert [item.key[-1] for item in new.graphs] == ["1", "3", "2"]
    assert (change.added, change.changed, change.removed) == (("inference-3",), ("inference-1",), ("inference-0",))
    assert (change.kept, change.same, change.left_out) == (("inference-2",), (), ())
    again, change = merged(new, made_with(), (graph(1), graph(3)), (), "mixbackend tune a")
    assert change.changed == ("inference-1",) and change.same == ("inference-3",)
    assert lock_text(merged(again, made_with(), (graph(3), graph(1)), (), "mixbackend tune a")[0]) == lock_text(again)


def test_numbers_alone_are_no_change() -> None:
    other = graph(0, estimated_s=9.0, measured=[], chosen="", single_backend_s={})
    assert merged(file(), made_with(), (other,), (), "mixbackend tune a")[1].same == ("inference-0",)


@pytest.mark.parametrize(
    "changes",
    [{"torch": "2.14.0"}, {"threads": 8}, {"backends": [{"name": "eager", "version": "", "fingerprint": "x"}]}],
)
def test_entries_made_with_something_else_are_left_out(changes: dict[str, object]) -> None:
    old = file(graph(0), graph(1, "mixbackend tune b"))
    new, change = merged(old, made_with(**changes), (graph(0),), (), "mixbackend tune a")
    assert [item.graph for item in new.graphs] == ["inference-0"]
    assert change.left_out == ("mixbackend tune b",) and change.kept == ()


def test_further_backends_join(written: Path) -> None:
    third = {"name": "onednn", "version": "3", "fingerprint": "f"}
    new, change = merged(
        file(graph(1, "mixbackend tune b")), made_with(backends=[third]), (graph(0),), (), "mixbackend tune a"
    )
    assert [item.name for item in new.made_with.backends] == ["codegen", "eager", "onednn"] and change.kept


# --- of a real graph -------------------------------------------------------------------------------------------------


def test_a_real_graph_comes_back(bench: Bench, small: Small) -> None:
    run = bench.run(small, [torch.randn(4, 64)])
    locked = bench.write(run)
    first = bench.lock.read_bytes()
    assert read_lock(bench.lock) == locked
    bench.write(bench.run(small, [torch.randn(4, 64)]))
    measured = re.compile(rb" *measured_s: .*\n")
    assert measured.sub(b"", bench.lock.read_bytes()) == measured.sub(b"", first)
    (entry,) = locked.graphs
    assert {"layers.0.wide", "layers.1.norm"} <= {module for region in entry.regions for module in region.nodes}
    assert sum(entry.ops().values()) == sum(len(region.names()) for region in entry.regions)
    assert isinstance(entry.regions[0], LockedRegion) and entry.weights == "constant"
    assert entry.inputs == ('activation tensor(float32, [4, 64], [64, 1], "cpu")',)
