"""Whether tables are as good as own rates: ``mixbackend bench first-plans``.

Place: beside the model suite. Input: models and phases. Output: a row for each, seconds of a call by the first plan
from the table of this machine's family over seconds of the one from this machine's own rates.
Method: once with this machine's product left out of the table (``table_folder``), an empty database and a look; once
with own rates, of the user's database or of an exported file. Nothing is tried in the calls. Both programs are in one
process and take turns in the order A B B A; the first call of a turn is not counted. The second one finds the artifacts
of the first, and where both plans are the same it is not timed: the ratio is 1.
Invariants: what fails is a row that says so; nothing is begun after the time is over.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mixbackend.benchmarks.machine_rates import begin_anew, keep_exported
from mixbackend.benchmarks.models.registry import find
from mixbackend.benchmarks.one_model import steps
from mixbackend.benchmarks.one_model.accuracy import Phase
from mixbackend.benchmarks.one_model.precision import Precision, cast
from mixbackend.benchmarks.one_model.timing import PAUSE_SECONDS, Timing
from mixbackend.benchmarks.withheld import other_table
from mixbackend.calibrate.device import synchronizer
from mixbackend.compile.mixture import Mixture
from mixbackend.configuration import load_config
from mixbackend.cost.rate_tables import Machine

SAME = "same plan"
_TURN_S = 0.05
_WARM_CALLS = 3
_TRAINED: dict[Precision, Precision] = {"float16": "amp_float16", "bfloat16": "amp"}

Case = tuple[str, Phase]
Plans = tuple[tuple[str, tuple[str, ...]], ...]
"""Of all graphs of a model: the backend and the nodes of each region."""

DEFAULT_INFERENCE = """
resnet18 DistilBertForMaskedLM mobilenet_v2 Llama-3.2 vit_base_patch16_224 hf_GPT2 vgg16 nanogpt dcgan BERT_pytorch
resnet50 OPTForCausalLM regnety_002 AlbertForMaskedLM mixer_b16_224 pytorch_unet nvidia_deeprecommender T5Small
deit_tiny_patch16_224 Qwen3 mnasnet_100 timm_vovnet RobertaForCausalLM convnext_base
""".split()
DEFAULT_TRAINING = "resnet18 DistilBertForMaskedLM mobilenet_v2 nanogpt vit_base_patch16_224 BERT_pytorch".split()


@dataclass(frozen=True)
class Wanted:
    """What is measured.

    Attributes:
        device: ``cpu`` or ``cuda``.
        precision: of inference; training runs under autocast where it is one of 16 bits.
        rounds: turns of each plan.
        budget_s: seconds after which nothing is begun.
        own: the machine with rates that are this one's own; ``None`` for what the user's database holds.
        keep_own: leave this machine's product in the table.
        backends: that plans may use; all usable ones if there are none.
    """

    device: str = "cpu"
    precision: Precision = "float32"
    rounds: int = 9
    budget_s: float = float("inf")
    own: Machine | None = None
    keep_own: bool = False
    backends: tuple[str, ...] = ()


@dataclass(frozen=True)
class FirstPlans:
    """One model in one phase.

    Attributes:
        case: its name and phase.
        status: ``pass``, ``same plan``, ``not reached``, or what failed.
        table, own: how they ran; without figures where the plans are the same.
    """

    case: Case
    status: str
    table: Timing | None = None
    own: Timing | None = None

    @property
    def ratio(self) -> float | None:
        """Median seconds by the table over those by own rates; ``None`` where one of both has no figures."""
        if self.status == SAME:
            return 1.0
        return self.table.median_s / self.own.median_s if self.table and self.own else None


def default_cases() -> list[Case]:
    """24 graphs of inference, and a training step after every fourth, so that what is reached is of both kinds."""
    cases: list[Case] = []
    for place, name in enumerate(DEFAULT_INFERENCE, start=1):
        cases.append((name, "inference"))
        if place % 4 == 0:
            cases.append((DEFAULT_TRAINING[place // 4 - 1], "training"))
    return cases


def measure(cases: Sequence[Case], wanted: Wanted, tell: Callable[[FirstPlans], None]) -> list[FirstPlans]:
    """Measure every case that there is time for.

    Raises:
        MixbackendError: this machine has no rates of its own.
    """
    end = time.monotonic() + wanted.budget_s
    rows = []
    for case in cases:
        row = FirstPlans(case, "not reached") if time.monotonic() > end else _measured(case, wanted)
        tell(row)
        rows.append(row)
    return rows


def _measured(case: Case, wanted: Wanted) -> FirstPlans:
    with tempfile.TemporaryDirectory(prefix="mixbackend-first-plans-") as folder:
        try:
            return _compared(case, wanted, Path(folder))
        except Exception as error:
            # A model that cannot be loaded or compiled here costs its own row.
            return FirstPlans(case, f"{type(error).__name__}: {str(error)[:200]}")
        finally:
            torch.compiler.reset()


def _compared(case: Case, wanted: Wanted, folder: Path) -> FirstPlans:
    step = _Step(case, wanted)
    with other_table(folder / "tables", wanted.device, wanted.keep_own):
        table = _Program(step, _cache(folder / "table", wanted, own=False), wanted)
    own_cache = _cache(folder / "own", wanted, own=True)
    artifacts = folder / "table" / "artifacts"
    if artifacts.is_dir():
        shutil.copytree(artifacts, own_cache / "artifacts", dirs_exist_ok=True)
    own = _Program(step, own_cache, wanted)
    same = table.plans() == own.plans()
    rounds = {"table": [], "own": []} if same else _turns({"table": table, "own": own}, wanted)
    told = {
        name: Timing(name, SAME if same else "pass", "", item.first_s, tuple(rounds[name]), item.owners())
        for name, item in (("table", table), ("own", own))
    }
    return FirstPlans(case, SAME if same else "pass", **told)


def _cache(folder: Path, wanted: Wanted, own: bool) -> Path:
    folder.mkdir(mode=0o700)
    begin_anew(folder, with_rates=own and wanted.own is None)
    if own and wanted.own is not None:
        keep_exported(folder, wanted.own)
    return folder


class _Step:
    """What is compiled, and how it is called."""

    def __init__(self, case: Case, wanted: Wanted) -> None:
        name, self.phase = case
        precision = wanted.precision
        if self.phase == "training":
            precision = _TRAINED.get(precision, precision)
        entry = find(name)
        loaded = steps.load(entry, self.phase, wanted.device, always_training_mode=True)
        self.module, self.args, self.kwargs = cast(loaded, precision)
        self.function = steps.step_of(entry, self.phase, precision, wanted.device)

    def call(self, compiled: steps.Step) -> None:
        self.module.zero_grad(set_to_none=True)
        with torch.set_grad_enabled(self.phase == "training"):
            compiled(self.module, self.args, self.kwargs)


class _Program:
    """A step under first plans."""

    def __init__(self, step: _Step, cache: Path, wanted: Wanted) -> None:
        settings: dict[str, Any] = {"cache": {"dir": str(cache)}, "select": "off", "background": "off"}
        allowed = {"backends": list(wanted.backends)} if wanted.backends else {}
        self._mixture = Mixture(load_config({**settings, **allowed, "verify": {"when": "off"}}))
        self.call = partial(step.call, torch.compile(step.function, backend=self._mixture))
        begin = time.perf_counter()
        self.call()
        self.first_s = time.perf_counter() - begin

    def plans(self) -> Plans:
        return tuple(
            (f"{graph.graph.phase} {graph.layout.chosen} {region.backend}", tuple(region.nodes))
            for graph in self._mixture.report().graphs
            for region in graph.plan.regions
        )

    def owners(self) -> dict[str, int]:
        """How many nodes each backend has."""
        counts: dict[str, int] = {}
        for told, nodes in self.plans():
            backend = told.rpartition(" ")[2]
            counts[backend] = counts.get(backend, 0) + len(nodes)
        return counts


def _turns(programs: dict[str, _Program], wanted: Wanted) -> dict[str, list[float]]:
    """Seconds of a call in each turn."""
    wait = synchronizer(wanted.device) or (lambda: None)

    def turn(program: _Program, calls: int) -> float:
        time.sleep(PAUSE_SECONDS)
        program.call()
        wait()
        begin = time.perf_counter()
        for _ in range(calls):
            program.call()
        wait()
        return (time.perf_counter() - begin) / calls

    once = max(min(turn(item, 1) for _ in range(_WARM_CALLS)) for item in programs.values())
    calls = max(1, min(100, round(_TURN_S / max(once, 1e-6))))
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for number in range(wanted.rounds):
        for name in reversed(programs) if number % 2 else programs:
            seconds[name].append(turn(programs[name], calls))
    return seconds
