"""The building of one challenger: behind as far as that is possible, the rest between two calls.

Place: made by ``compile.tried_entry``, asked by ``select.live``. Input: a choice. Output: a ``Contender``.
Invariants: asking takes microseconds and waits for nothing.
Units: seconds.
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol

import torch

from mixbackend.contracts import OpGraph
from mixbackend.contracts.torch_compat import inductor_choices, kernel_switches
from mixbackend.host.background import Job
from mixbackend.host.behind_budget import Figures
from mixbackend.plan.choice import Choice
from mixbackend.plan.environment import Environment
from mixbackend.reporting import Event
from mixbackend.select.live.challengers import build_s
from mixbackend.select.live.preparation import Contender, NotNowError
from mixbackend.select.live.standing import SAME_PLAN

_WORK = "mixbackend.compile.behind_worker:build"
_NOT_NOW = ("budget", "refused", "out_of_memory", "crash")
"""What may become of a job that says nothing of others: its process may have been killed."""
_LOAD_S, _LOAD_OP_S, _BIND_BYTE_S = 0.02, 1e-3, 2.5e-9
"""Loading what was compiled behind: for a graph, for each of its ops, and for each byte of constants, to pack them."""


def challenger_job(graph_text: str, choice: Choice, environment: Environment, entry: str) -> Job:
    """The job that builds a challenger behind.

    Args:
        graph_text: of the whole graph, at the sizes that it is placed for.
        choice: what tells the challenger from others.
        environment: of the user's process.
        entry: the entry that pays for it with its calls.
    """
    options = {
        "search.mode": "estimate",
        "select": "off",
        "background": "off",
        "on_failure": "raise",
        "lock": {"path": None, "frozen": False},
        "cache.dir": str(environment.storage.store.folder.parent),
    }
    data = {
        "graph": graph_text,
        "config": environment.config.with_options(options).model_dump(mode="json"),
        "records": environment.records,
        "choice": choice.to_dict(),
        "fingerprints": dict(environment.fingerprints),
        "threads": torch.get_num_threads(),
        "switches": kernel_switches(),
        "inductor": inductor_choices(),
    }
    return Job(_WORK, data, entry)


class UnbuiltError(Exception):
    """A challenger cannot be had, with the reason."""


class Loader(Protocol):
    """The entry that a challenger is for."""

    @property
    def graph(self) -> OpGraph:
        """What it runs."""
        ...

    def runs(self, planned: Choice) -> bool:
        """Whether a choice came to the plan that runs."""
        ...

    def load(self, choice: Choice) -> Contender:
        """Build from what is compiled, and compile the rest."""
        ...


class ChallengerBuild:
    """See the module's docstring, and ``preparation.Preparation``.

    Args:
        entry: that the challenger is for.
        choice: the challenger.
        environment: backends, and what is behind.
        name: under which the entry's calls pay for what is behind.
        number: of the job that builds it behind; ``None`` where all is built between two calls.
        constants_bytes: of what it will be bound to.
    """

    def __init__(
        self,
        entry: Loader,
        choice: Choice,
        environment: Environment,
        name: str,
        number: int | None,
        constants_bytes: int,
    ) -> None:
        self._entry, self._choice = entry, choice
        self._environment, self._name, self._number = environment, name, number
        self._bind_s = _BIND_BYTE_S * constants_bytes
        self.load_s = self._all_here_s()

    def ready(self, calls: int, spent_s: float) -> bool:
        """Whether what is behind is done; see ``Preparation``.

        Raises:
            NotNowError: there was not enough of something for it, or it was forgotten.
            UnbuiltError: it failed, or came to the plan that runs.
        """
        if self._number is None:
            return True
        background = self._environment.background
        background.paid(self._name, Figures(calls, spent_s))
        done = background.answer(self._number)
        if done is None:
            return False
        if done.status in _NOT_NOW:
            raise NotNowError(f"{done.status}: {done.detail}")
        if done.status != "pass":
            raise UnbuiltError(f"{done.status}: {done.detail}")
        self._number, self._choice = None, Choice.from_dict(done.result["choice"])
        for left_out in done.result["left_out"]:
            self._environment.events.append(Event("tuning", self._entry.graph.id, "", "", f"behind: {left_out}"))
        if self._entry.runs(self._choice):
            raise UnbuiltError(SAME_PLAN)
        self.load_s = self._loading_s()
        return True

    def load(self) -> Contender:
        """See ``Preparation``."""
        return self._entry.load(self._choice)

    def _all_here_s(self) -> float:
        """Where nothing is compiled behind."""
        backends = self._choice.allowed(self._environment.backends)
        names = tuple(item.name for item in backends if not item.traits().reference)
        return build_s(self._environment.planner, self._entry.graph, names) + self._bind_s

    def _loading_s(self) -> float:
        """Of what was compiled behind; what cannot be is compiled between two calls."""
        graph, planner = self._entry.graph, self._environment.planner
        assert self._choice.plan is not None, "it was planned behind"
        ops: Counter[str] = Counter()
        for region in self._choice.plan.regions:
            ops[region.backend] += len(region.nodes)
        device = graph.device_type
        here = {
            name: count for name, count in ops.items() if device not in planner.backend(name).traits().compiles_behind
        }
        compiled_s = sum(planner.backend(name).build_seconds(device).of(count) for name, count in here.items())
        return _LOAD_S + _LOAD_OP_S * len(graph.placed_nodes) + self._bind_s + compiled_s
