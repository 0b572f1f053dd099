"""Random programs under live selection, with backends that fail: every call is as in eager, and trying ends."""

from __future__ import annotations

import copy
import itertools
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import stand_in_backends
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from stand_in_backends import Loopback, settle
from tiers import draws
from torch.nn.functional import dropout
from torch.utils.checkpoint import checkpoint

from mixbackend.contracts import CompiledRegion, OpView, Region, Supported, Traits, Verdict
from mixbackend.select.live import duel
from mixbackend.select.live import paired_decision as paired

pytestmark = pytest.mark.usefixtures("worth_comparing", "tried_at_once")

WIDTH, SLOTS = 6, 5
PARTS = ("cursor", "count", "noise", "write", "view", "checkpoint", "reentrant")


@dataclass(frozen=True)
class Fault:
    """What a backend does wrong: ``kind`` in the call of this number, of each region."""

    kind: str = ""
    call: int = 1


class Stage(Loopback):
    """A backend that takes every op, is slow for so long, and fails as planned."""

    def __init__(self, name: str, seconds: float, fault: Fault, effects: bool) -> None:
        super().__init__()
        self.name = name  # type: ignore[misc]
        self.seconds, self.fault, self.effects = seconds, fault, effects

    def traits(self) -> Traits:
        return Traits(thread_pool=self.name, keeps_random_stream=self.effects, takes_effects=self.effects)

    def judge(self, view: OpView) -> Verdict:
        return Supported() if self.effects else super().judge(view)

    def compile(self, region: Region) -> CompiledRegion:
        if self.fault.kind == "compile":
            raise NotImplementedError("planted")
        inner, calls = super().compile(region), itertools.count(1)

        def run(inputs: Sequence[Any]) -> list[torch.Tensor]:
            due = next(calls) == self.fault.call
            if due and self.fault.kind == "before":
                raise RuntimeError("planted before it wrote")
            stand_in_backends.sleep(self.seconds)
            outputs = list(inner.run(inputs))
            if due and self.fault.kind == "after":
                raise RuntimeError("planted after it wrote")
            if due and self.fault.kind == "wrong":
                return [output + 1 if output.is_floating_point() else output for output in outputs]
            if due and self.fault.kind == "strides":
                return [output.t().contiguous().t() if output.dim() == 2 else output for output in outputs]
            return outputs

        return CompiledRegion(run, strides="contiguous")


class Model(torch.nn.Module):
    """Parts, one after the other; returns the last value, and views."""

    def __init__(self, parts: tuple[str, ...], seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.parts = parts
        self.weight = torch.nn.Parameter(torch.randn(WIDTH, WIDTH, generator=generator) / WIDTH)
        self.register_buffer("cache", torch.zeros(SLOTS, WIDTH))
        self.register_buffer("cursor", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        h, more = torch.tanh(x @ self.weight), []
        for part in self.parts:
            if part == "cursor":
                self.cache.index_copy_(0, self.cursor % SLOTS, h.detach().mean(0, keepdim=True))
                self.cursor.add_(1)
                h = h + self.cache.sum(0)
            elif part == "count":
                self.count.add_(1.0)
                h = h * (1.0 + 1.0 / self.count)
            elif part == "noise":
                h = dropout(h, 0.5, True)
            elif part == "write" and not torch.is_grad_enabled():
                x.mul_(0.5).add_(h.detach())
            elif part == "view":
                more += [x.view(-1)[1:], h.t()]
            elif part in ("checkpoint", "reentrant"):
                h = checkpoint(lambda value: (value.sin() * 2.0).relu(), h, use_reentrant=part == "reentrant")
        return [h.exp(), *more]


@dataclass(frozen=True)
class Case:
    """What is drawn.

    Attributes:
        parts, training, symbolic: of the program.
        layers: how many sets of weights share the graph.
        edits: every so many calls the weights are edited; 0 for never.
        faults, slow, effects: of the backends, the first one's plan running first.
        seed: of who wins.
    """

    parts: tuple[str, ...]
    training: bool
    symbolic: bool
    layers: int
    edits: int
    faults: tuple[Fault, ...]
    slow: int
    effects: tuple[bool, ...]
    seed: int


FAULTS = st.one_of(
    st.just(Fault()),
    st.just(Fault("compile")),
    st.builds(Fault, st.just("before"), st.integers(1, 2)),
    st.builds(Fault, st.just("after"), st.integers(1, 2)),
    st.builds(Fault, st.sampled_from(["wrong", "strides"])),
)
CASES = st.builds(
    Case,
    st.lists(st.sampled_from(PARTS), min_size=1, max_size=3, unique=True).map(tuple),
    st.booleans(),
    st.booleans(),
    st.integers(1, 3),
    st.sampled_from([0, 0, 7]),
    st.tuples(st.just(Fault()), FAULTS, FAULTS),
    st.integers(0, 2),
    # What is written into has no way back in the plan that runs first: its backend fails nowhere.
    st.sampled_from([(False, False, False), (True, False, True), (True, True, True)]),
    st.integers(0, 999),
)


class Twins:
    """A model and its copy in eager, which see the same calls."""

    def __init__(self, case: Case, compiled: Any) -> None:
        self.case, self.compiled, self.number = case, compiled, 0
        self.models = [Model(case.parts, seed) for seed in range(case.layers)]
        self.eagers = copy.deepcopy(self.models)

    def call(self) -> None:
        """One call of each: what it returns, and leaves behind, is equal."""
        place, self.number = self.number % len(self.models), self.number + 1
        model, eager = self.models[place], self.eagers[place]
        size = (4, 4, 7)[self.number // len(self.models) % 3] if self.case.symbolic else 4
        x = torch.randn(size, WIDTH, generator=torch.Generator().manual_seed(self.number))
        if self.case.edits and self.number % self.case.edits == 0:
            with torch.no_grad():
                model.weight.mul_(1.1), eager.weight.mul_(1.1)
        mine, expected = self.seen(self.compiled, model, x), self.seen(lambda model, x: model(x), eager, x)
        for label in expected:
            torch.testing.assert_close(mine[label], expected[label], msg=lambda text, label=label: f"{label}: {text}")

    def seen(self, function: Any, model: Model, x: torch.Tensor) -> dict[str, Any]:
        """All that a caller could see of a call."""
        x, own = x.clone(), {**dict(model.named_buffers()), **dict(model.named_parameters())}
        known = {"x": x, **own}
        versions = {name: item._version for name, item in known.items()}
        torch.manual_seed(self.number)
        with torch.set_grad_enabled(self.case.training):
            outputs = function(model, x)
        found: dict[str, Any] = {f"output {place}": item.detach() for place, item in enumerate(outputs)}
        found["strides"] = [item.stride() for item in outputs]
        found["memory"] = [item.untyped_storage()._cdata == x.untyped_storage()._cdata for item in outputs]
        if self.case.training:
            model.weight.grad = None
            outputs[0].sum().backward()
            found["gradient"] = model.weight.grad
        found |= {f"{name} afterwards": item.detach().clone() for name, item in known.items()}
        found["writes"] = {name: item._version > versions[name] for name, item in known.items()}
        found["random"] = torch.rand(2)
        return found


@pytest.fixture
def any_winner(monkeypatch: pytest.MonkeyPatch) -> random.Random:
    """One round decides, by chance."""
    chance = random.Random()

    def decide(rounds: Sequence[Any]) -> paired.Outcome:
        verdict = chance.choice((paired.Verdict.FASTER, paired.Verdict.SLOWER)) if rounds else paired.Verdict.OPEN
        return paired.Outcome(verdict, len(rounds), 0.5)

    monkeypatch.setattr(duel, "decide", decide)
    return chance


@settings(
    derandomize=True,
    max_examples=draws(5, 25),
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(case=CASES)
def test_every_call_is_eagers_whatever_is_tried(make_mixture, any_winner, tmp_path_factory, case):
    torch._dynamo.reset()
    any_winner.seed(case.seed)
    rows = zip("abc", case.faults, case.effects, strict=True)
    backends = [Stage(name, 0.01 * (case.slow == place), *more) for place, (name, *more) in enumerate(rows)]
    folder = str(tmp_path_factory.mktemp("cache"))
    mixture = make_mixture(*backends, on_failure="repair", cache={"dir": folder}, background="off")
    compiled = torch.compile(lambda model, x: model(x), backend=mixture, dynamic=case.symbolic)
    twins = Twins(case, compiled)
    settle(mixture, twins.call, 400)
    for _ in range(2 * case.layers):
        twins.call()


def test_threads_that_call_one_model_while_it_is_tried(make_mixture, any_winner):
    faults = {"a": Fault(), "b": Fault("before"), "c": Fault()}
    backends = [Stage(name, 0.001, fault, True) for name, fault in faults.items()]
    mixture = make_mixture(*backends, on_failure="repair", background="off")
    model = Model(("view",), 3)
    compiled = torch.compile(model, backend=mixture, dynamic=False)
    wrong: list[str] = []

    def work(place: int) -> None:
        x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(place))
        with torch.no_grad():
            for _ in range(150):
                for mine, expected in zip(compiled(x), model(x), strict=True):
                    if not torch.allclose(mine, expected):
                        wrong.append(f"thread {place}")

    with torch.no_grad():
        compiled(torch.randn(4, WIDTH))
    threads = [threading.Thread(target=work, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    with torch.no_grad():
        settle(mixture, lambda: compiled(torch.randn(4, WIDTH)))
