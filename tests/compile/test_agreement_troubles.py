"""Where ranks of a job cannot agree: what one wrote is damaged, its store fails, it ends or fails; nobody hangs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as distributed
from ranks_here import as_rank, owners, run, told
from regime_cases import WIDTH, function
from stand_in_backends import Faulty

from mixbackend.compile import council
from mixbackend.plan.planner import Planner
from mixbackend.storage.job import Job, JobStoreError, job_here

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="this torch has no torch.distributed")


@pytest.mark.parametrize("damage", ["backend", "node", "layout", "regions", "plan", "value"])
def test_plans_from_elsewhere_are_not_believed(
    make: Any, backends: Any, prefer: Any, store: Any, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(value: dict[str, Any]) -> dict[str, Any]:
        text = json.dumps(value)
        changes: dict[str, Callable[[], dict[str, Any]]] = {
            "backend": lambda: json.loads(text.replace('"small"', '"unheard_of"')),
            "node": lambda: json.loads(text.replace("aten.sin.default", "aten.exp.default")),
            "layout": lambda: value | {"layout": "channels_last"},
            "regions": lambda: value | {"plan": value["plan"] | {"regions": []}},
            "plan": lambda: value | {"plan": {"version": 99}},
            "value": dict,
        }
        return changes[damage]()

    prefer("small")
    publish = Job.publish
    with as_rank(0, store), monkeypatch.context() as patch:
        patch.setattr(Job, "publish", lambda self, key, value: publish(self, key, damaged(value)))
        run(make(0, *backends))
    prefer("large")
    with as_rank(1, store):
        mixture = make(1, *backends)
        run(mixture)
    assert owners(mixture) == {"large"}
    assert len(told(mixture)) == 1 and "what rank 0 decided does not hold here" in told(mixture)[0]


def test_a_damaged_joint_decision_is_not_believed(
    make: Any, backends: Any, prefer: Any, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefer("small")
    publish = Job.publish
    with as_rank(0, store), monkeypatch.context() as patch:
        told_else = {"layout": "channels_last", "saved": ["aten.tan.default@1"], "recomputed": []}
        patch.setattr(Job, "publish", lambda self, key, value: publish(self, key, told_else))
        train(make(0, *backends))
    with as_rank(1, store):
        mixture = make(1, *backends)
        train(mixture)
    events = [event for event in mixture.report().events if event.kind == "fallback" and event.graph == "joint"]
    assert len(events) == 1 and "does not hold here" in events[0].detail


def train(mixture: Any) -> None:
    value = torch.randn(8, WIDTH, requires_grad=True)
    torch.compile(function, backend=mixture)(value).sum().backward()
    expected = value.detach().clone().requires_grad_()
    function(expected).sum().backward()
    torch.testing.assert_close(value.grad, expected.grad)


def test_a_store_that_fails_is_an_event(
    make: Any, backends: Any, prefer: Any, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*arguments: Any) -> Any:
        raise JobStoreError("reading failed: the server has gone")

    prefer("small")
    monkeypatch.setattr(Job, "standing", failing)
    monkeypatch.setattr(Job, "publish", failing)
    with as_rank(0, store):
        mixture = make(0, *backends)
        train(mixture)
    assert owners(mixture) == {"small"} and all("the server has gone" in detail for detail in told(mixture))
    assert {event.graph for event in mixture.report().events} >= {"joint", "forward-0", "backward-0"}


def claimed_keys(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked for from now on."""
    keys: list[str] = []
    turn = Job.turn

    def noted(self: Job, key: str, patience_s: float) -> Any:
        keys.append(key)
        return turn(self, key, patience_s)

    monkeypatch.setattr(Job, "turn", noted)
    return keys


def test_who_ends_while_it_plans_is_not_waited_for_long(
    make: Any, backends: Any, prefer: Any, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefer("small")
    keys = claimed_keys(monkeypatch)
    with as_rank(0, distributed.HashStore()):
        run(make(0, *backends))
    with as_rank(0, store):
        job = job_here()
    assert job is not None and len(keys) == 1
    monkeypatch.setattr(council, "LEAST_S", 0.3)
    dead = job.turn(keys[0], 0.0)
    dead.__enter__()
    with as_rank(1, store):
        mixture = make(1, *backends)
        other = make(2, *backends)
        begin = time.monotonic()
        torch.compile(torch.tan, backend=other)(torch.randn(4))
        run(mixture)
        waited = time.monotonic() - begin
    assert told(other) == [], "another graph waits for nobody"
    assert len(told(mixture)) == 1 and told(mixture)[0].startswith(
        "planned here, no plan of another rank came within 0."
    )
    assert owners(mixture) == {"small"} and 0.2 < waited < 2.0
    with as_rank(0, store):
        late = make(3, *backends)
        run(late)
    assert told(late)[0].startswith("does what rank 1 decided")


def test_a_rank_that_cannot_plan_keeps_nobody_waiting(
    make: Any, prefer: Any, store: Any, backends: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefer("small")
    with as_rank(0, store), monkeypatch.context() as patch:
        patch.setattr(Planner, "place", lambda *_, **__: pytest.fail("a fault of this rank"))
        with pytest.raises(BaseException, match="a fault of this rank"):
            run(make(0, *backends))
    monkeypatch.setattr(council, "LEAST_S", 60.0)
    with as_rank(1, store):
        mixture = make(1, *backends)
        begin = time.monotonic()
        run(mixture)
    assert owners(mixture) == {"small"} and time.monotonic() - begin < 30.0


def test_a_backend_that_fails_on_one_rank_alone(make: Any, backends: Any, prefer: Any, store: Any) -> None:
    prefer("small")
    with as_rank(0, store):
        run(make(0, *backends))
    failing = Faulty(compile_error=RuntimeError("no memory"))
    failing.name = "small"  # type: ignore[misc]
    with as_rank(1, store):
        mixture = make(1, failing, backends[1], on_failure="repair")
        run(mixture)
        assert owners(mixture) == {"large"}
        assert any(event.kind == "quarantine" for event in mixture.report().events)
        others = make(2, *backends)
        run(others)
    assert owners(others) == {"small"}
