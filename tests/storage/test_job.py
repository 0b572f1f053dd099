"""The job's store: the first value stands, waiting is bounded, and what is not a value is told."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
import torch.distributed as distributed
from forked import in_fork
from ranks_here import as_rank

from mixbackend.storage.job import FORMAT, MOST_BYTES, Job, JobStoreError, Standing, job_here

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="this torch has no torch.distributed")


@pytest.fixture(params=["hash", "file"])
def ranks(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Job, Job]:
    """Two ranks' views of one store."""
    if request.param == "hash":
        store = distributed.HashStore()
        return Job(store, 0), Job(store, 1)
    return tuple(Job(distributed.FileStore(str(tmp_path / "store"), 2), rank) for rank in range(2))


def test_the_first_value_stands(ranks: tuple[Job, Job]) -> None:
    assert ranks[0].standing("a") is None
    assert ranks[1].publish("a", {"x": [1]}) == Standing({"x": [1]}, 1)
    assert ranks[0].publish("a", {"x": [2]}) == Standing({"x": [1]}, 1) == ranks[0].standing("a")
    assert ranks[0].standing("b") is None


def test_others_wait_for_who_claims_first(ranks: tuple[Job, Job]) -> None:
    claimed = threading.Event()

    def first() -> None:
        with ranks[0].turn("a", 9.0) as turn:
            assert turn.claimed and turn.found is None
            claimed.set()
            time.sleep(0.1)
            ranks[0].publish("a", {"made": "first"})

    maker = threading.Thread(target=first)
    maker.start()
    assert claimed.wait(5.0)
    with ranks[1].turn("a", 9.0) as turn:
        assert turn.found == Standing({"made": "first"}, 0) and not turn.claimed
        assert 0.0 < turn.waited_s < 5.0
    maker.join()


def test_who_fails_keeps_nobody_waiting(ranks: tuple[Job, Job]) -> None:
    with pytest.raises(RuntimeError, match="no plan"), ranks[0].turn("a", 9.0):
        raise RuntimeError("no plan")
    with ranks[1].turn("a", 9.0) as turn:
        assert turn.found is None and not turn.claimed and turn.waited_s < 1.0


def test_patience_ends(ranks: tuple[Job, Job]) -> None:
    with ranks[0].turn("a", 9.0):  # as a rank that was killed while it planned
        with ranks[1].turn("a", 0.2) as turn:
            assert turn.found is None and not turn.claimed and turn.waited_s <= 0.25
            assert ranks[1].publish("a", {"made": "second"}).rank == 1
        assert ranks[0].publish("a", {"made": "first"}).rank == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no json",
        "[" * 100_000,
        "[]",
        json.dumps({"format": FORMAT + 1, "key": "a", "rank": 0, "value": {}}),
        json.dumps({"format": FORMAT, "key": "b", "rank": 0, "value": {}}),
        json.dumps({"format": FORMAT, "key": "a", "rank": True, "value": {}}),
        json.dumps({"format": FORMAT, "key": "a", "rank": 0, "value": []}),
        " " * (MOST_BYTES + 1),
    ],
)
def test_what_is_no_value_is_told(text: str) -> None:
    store = distributed.HashStore()
    store.set("a", text)
    with pytest.raises(JobStoreError):
        Job(store, 0).standing("a")


def test_what_is_too_long_is_not_written() -> None:
    store = distributed.HashStore()
    with pytest.raises(JobStoreError, match="more than ranks tell"):
        Job(store, 0).publish("a", {"x": "y" * MOST_BYTES})
    assert not store.check(["a"])


def test_a_store_that_is_gone_is_told() -> None:
    job = Job(Gone(), 0)
    with pytest.raises(JobStoreError, match="the server has gone"):
        job.standing("a")
    with pytest.raises(JobStoreError, match="the server has gone"), job.turn("a", 1.0):
        pass


class Gone(distributed.Store):
    """The process that has it ended."""

    def check(self, keys: list[str]) -> bool:
        raise distributed.DistNetworkError("the server has gone")


def test_without_a_group_of_several_ranks_there_is_no_job() -> None:
    assert job_here() is None
    with as_rank(0, distributed.HashStore(), ranks=1):
        assert job_here() is None


def test_groups_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    store, first = distributed.HashStore(), Standing({"by": "the first group"}, 0)
    with as_rank(0, store):
        job = job_here()
        assert job is not None and job.publish("a", first.value) == first
    assert job_here() is None
    with as_rank(1, store):
        again = job_here()
        assert again is not None and again.rank == 1 and again.standing("a") == first
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
        restarted = job_here()
        assert restarted is not None and restarted.standing("a") is None
        monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT")
    with as_rank(1, store, ranks=3):
        larger = job_here()
        assert larger is not None and larger.standing("a") is None


def test_a_child_of_a_fork_leaves_the_parents_store_alone() -> None:
    with as_rank(0, distributed.HashStore()):
        assert in_fork(lambda: job_here() is None) == 0
        assert job_here() is not None
