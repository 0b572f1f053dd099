"""Tuner: what was decided about a graph before, or a race over its candidates with the values of its first call.

Place: between capture and placement. Input: a captured graph, in a race the values. Output: a ``Decision``.
A decision belongs to the exact graph (operators, arguments, dtypes, strides, symbols, roles of inputs), the backends
with their fingerprints, the device, the threads and what the configuration says about placement; it is remembered, and
holds in every mode.
Invariants: nothing is decided without a measurement; a graph that cannot be carried to another process, or a rule that
another process could not read, is not tuned, and an event says so. What measures is loaded when something is measured.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from mixbackend import registry
from mixbackend.configuration import Config
from mixbackend.contracts import Phase, RegionTextError
from mixbackend.execute.weights.constant_weights import constant_weights
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.identity import Captured
from mixbackend.graph.prepared import prepare
from mixbackend.host.openmp import cores
from mixbackend.plan.choice import Choice
from mixbackend.plan.environment import Environment
from mixbackend.reporting import Event
from mixbackend.select.decision import MEASURED, NO_TIME, SLOWER, UNTUNED, Decision, Trial, decide
from mixbackend.storage.eviction import TUNING_PREFIX
from mixbackend.storage.tables import ASKED

if TYPE_CHECKING:
    from mixbackend.select.race import Candidate, Runner
    from mixbackend.select.refine import Refiner

MOST_AT_ONCE = 4
"""So many candidates compile side by side; each holds the model in its memory."""


@dataclass(frozen=True)
class TuningTask:
    """A graph that may be tuned, and the key of what is decided about it.

    Attributes:
        text: canonical text of the whole graph.
        inputs: positions, among the graph's inputs, of those that the text takes, in its order.
        key: what a decision about it is remembered under.
        device: that it works on, with the product.
        asked: what the key is a digest of, by name.
    """

    text: str
    inputs: tuple[int, ...]
    key: str
    device: str = ""
    asked: Mapping[str, Any] = field(default_factory=dict)

    def kept(self, decision: Decision) -> dict[str, Any]:
        """A decision as it is kept, with what it is an answer to."""
        return {**decision.to_dict(), ASKED: dict(self.asked)}


def task_of(captured: Captured, environment: Environment) -> TuningTask:
    """What a decision about a graph belongs to.

    Raises:
        RegionTextError: the graph has no text, so that no other process could read it.
    """
    identity = captured.identity
    device = environment.device(identity.graph)
    asked = {"graph": identity.key, "phase": identity.graph.phase, **asked_here(environment, device)}
    key = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
    return TuningTask(identity.text, identity.inputs, key, device, asked)


def task_if_any(captured: Captured, environment: Environment) -> TuningTask | None:
    """What a decision would belong to; ``None`` where none was made before and none shall be, or none can be."""
    measuring = environment.config.search.mode == "measure"
    if not measuring and not environment.storage.database.has_decisions():
        return None
    reason = why_untunable(environment)
    try:
        if not reason:
            return task_of(captured, environment)
    except RegionTextError as error:
        reason = f"the graph cannot be given to another process: {error}"
    if measuring:
        environment.events.append(Event("tuning", captured.id, "", "", f"placed by estimates: {reason}"))
    return None


def tune_if_possible(
    captured: Captured, task: TuningTask, values: Sequence[Any], environment: Environment, beside: Sequence[Choice] = ()
) -> Decision:
    """``tune``; a graph that cannot be measured is placed by estimates, and an event says why."""
    try:
        decision = tune(captured, task, values, environment, beside)
    except Exception as error:
        if environment.config.on_failure == "raise":
            raise
        environment.events.append(Event("tuning", captured.id, "", "", f"placed by estimates: {error}"))
        return UNTUNED
    for trial in decision.trials:
        if trial.status not in (MEASURED, SLOWER):
            detail = f"{trial.choice} could not be measured: {trial.status}: {trial.detail}"
            environment.events.append(Event("tuning", captured.id, "", "", detail))
    return decision


def remembered(task: TuningTask, environment: Environment) -> Decision:
    """What was decided before; ``UNTUNED`` if nothing."""
    return Decision.read(environment.storage.database.decision(task.key))


def tune(
    captured: Captured, task: TuningTask, values: Sequence[Any], environment: Environment, beside: Sequence[Choice] = ()
) -> Decision:
    """Measure the candidates of a graph, and remember what came of it, unless none could be measured.

    Args:
        captured: the graph.
        task: of the graph.
        values: one per placeholder; they are only read.
        environment: backends, costs, budget.
        beside: candidates beyond those that estimates suggest.

    Raises:
        TypeError, OSError: the values cannot be carried to another process.
    """
    from mixbackend.select.candidates import find_candidates, in_layouts
    from mixbackend.select.refine import Refiner

    graphs = in_layouts(*placeable(captured, environment))
    candidates = find_candidates(graphs, environment.planner, beside)
    if len(candidates) < 2:
        return UNTUNED
    # Two races at once would measure one another.
    with environment.storage.database.alone("tuning"):
        known = remembered(task, environment)
        if known is not UNTUNED:
            return known
        with _folder(environment.storage.folder) as folder:
            _write(folder, task, values, environment)
            refiner = Refiner(graphs, environment.planner, candidates)
            decision = decide(_race(tuple(candidates.values()), refiner, folder, task, environment))
        if decision.measured:
            environment.storage.database.set_decision(
                task.key, task.kept(decision), device=task.device, fingerprints=environment.fingerprints
            )
            environment.storage.database.forget_decision(_unfinished(task))
    return decision


@contextmanager
def _folder(parent: Path) -> Iterator[Path]:
    """A folder for one race; those that are there already were left by processes that were killed."""
    for left in parent.glob(f"{TUNING_PREFIX}*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=TUNING_PREFIX, dir=parent) as name:
        yield Path(name)


def why_untunable(environment: Environment) -> str:
    """Why nothing under an environment can be measured in other processes; empty if it can."""
    if environment.config.objective != "latency":
        return "what is measured is how long calls take, and the objective is another"
    if any(preference.match.module or preference.match.module_class for preference in environment.config.preferences()):
        return "rules that match modules cannot be read by the processes that measure"
    local = {info.name for info in registry.backends() if info.origin == registry.IN_PROCESS}
    mine = sorted(local.intersection(environment.fingerprints))
    if mine:
        return f"{', '.join(mine)} was registered in this process, where no other can find it"
    return ""


def asked_here(environment: Environment, device: str) -> dict[str, Any]:
    """What a decision depends on beside the graph, by name."""
    return {
        "configuration": environment.config.model_dump(mode="json", include={"rules", "min_region", "weights"}),
        "fingerprint": dict(environment.fingerprints),
        "device": device,
        "threads": torch.get_num_threads(),
    }


def placeable(
    captured: Captured, environment: Environment
) -> tuple[torch.fx.GraphModule, Phase, Mapping[str, PlaceholderRole]]:
    """The graph that is placed: in inference, what is left of it when constants are split off."""
    constants, _ = constant_weights(captured.module, captured.phase, captured.roles, environment.config.weights)
    prepared = prepare(captured, constants)
    return prepared.module, prepared.phase, prepared.roles


def _write(folder: Path, task: TuningTask, values: Sequence[Any], environment: Environment) -> None:
    from mixbackend.select.request import TrialRequest
    from mixbackend.select.values import write_values

    request = TrialRequest(folder, Choice(), 0)
    request.graph_file.write_text(task.text)
    request.config_file.write_text(measured_under(environment.config).model_dump_json())
    write_values(folder, [values[place] for place in task.inputs])


def measured_under(config: Config) -> Config:
    """The configuration of candidates: placed by estimates, and held against eager at their first call at most.

    Calls that are held against eager in float64 take several times as long, those of eager itself are not held.
    """
    checks = config.verify.when if config.verify.when == "off" else "first_call"
    return config.with_options({"search.mode": "estimate", "verify.when": checks})


def _unfinished(task: TuningTask) -> str:
    """Under this key is kept what is known of a race that has not ended: candidates that left it."""
    return f"{task.key}-unfinished"


def _race(
    candidates: Sequence[Candidate], refiner: Refiner, folder: Path, task: TuningTask, environment: Environment
) -> tuple[Trial, ...]:
    """A race among those that did not leave an earlier one, which was interrupted; the first runs again in any case."""
    from mixbackend.host.processes import Worker, memory_bytes
    from mixbackend.select.progress import tuning_bar
    from mixbackend.select.race import race
    from mixbackend.select.request import MODULE, TrialRequest

    threads = torch.get_num_threads()
    kept = Decision.read(environment.storage.database.decision(_unfinished(task)))
    left = {trial.choice: trial for trial in kept.trials if trial.choice != candidates[0].choice}

    def start(choice: Choice) -> Runner:
        return Worker(TrialRequest(folder, choice, threads, memory_bytes()), MODULE)

    def leave(trial: Trial) -> None:
        if trial.status != NO_TIME:
            left[trial.choice] = trial
            environment.storage.database.set_decision(
                _unfinished(task), task.kept(Decision(trials=tuple(left.values())))
            )

    again = [candidate for candidate in candidates if candidate.choice not in left]
    before = tuple(left.values())
    with tuning_bar() as show:
        at_once = min(MOST_AT_ONCE, cores())
        return (*race(again, start, environment.config.search.budget_s, show, refiner, leave, at_once=at_once), *before)
