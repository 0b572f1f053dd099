"""The thread policy: it acts only where pools are mixed, heeds the user, and undoes what it did."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from stand_in_backends import Loopback

from mixbackend.benchmarks.idle_threads import make_threads_sleep, without_decisions
from mixbackend.compile.mixture import Mixture
from mixbackend.contracts import Traits, thread_policy
from mixbackend.host import threads as threads_module
from mixbackend.host.openmp import kind_of, runtime_of_torch
from mixbackend.host.thread_environment import decided_by_user
from mixbackend.host.thread_parking import Code
from mixbackend.host.threads import ThreadSharing, sharing

GNU = "/somewhere/libgomp.so.1"
INTEL = "/somewhere/libiomp5.so"


class Quiet:
    means = "a stand-in"

    def __init__(self) -> None:
        self.ended = 0

    def end(self) -> None:
        self.ended += 1


class Parking:
    """Stands for ``ThreadParking``: says where code was called."""

    means = "a stand-in"

    def __init__(self, path: str) -> None:
        self.path = path

    def around(self, code: Code) -> Code:
        return lambda inputs: [self.path, *code(inputs)]


class Owner:
    pass


class Made:
    """A policy object over runtimes that are not there, and what it did to them."""

    def __init__(self, *paths: str, problem: Exception | None = None, parks: bool = True) -> None:
        self.quiet: dict[str, Quiet] = {}
        self._problem = problem
        self._parks = parks
        self.means = (lambda: paths, self._quieten, self._rest)
        self.sharing = ThreadSharing(*self.means)

    def _rest(self, path: str) -> Any:
        if not self._parks:
            raise AttributeError("no such function")
        return Parking(path)

    def _quieten(self, path: str) -> Quiet:
        if self._problem is not None:
            raise self._problem
        self.quiet[path] = Quiet()
        return self.quiet[path]


@pytest.fixture(autouse=True)
def crowded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two threads on two cores, and a user who decided nothing."""
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads_module, "cores", lambda: 2)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_the_environment_is_set_where_nobody_decided() -> None:
    environment = {"OTHER": "1"}
    make_threads_sleep(environment)
    assert environment == {"OTHER": "1", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
    assert without_decisions(environment) == {"OTHER": "1"}


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ({"OMP_WAIT_POLICY": "ACTIVE"}, {}),
        ({"GOMP_SPINCOUNT": "77"}, {"KMP_BLOCKTIME": "0"}),
        ({"KMP_BLOCKTIME": "1"}, {"GOMP_SPINCOUNT": "0"}),
        ({"KMP_LIBRARY": "turnaround"}, {"GOMP_SPINCOUNT": "0"}),
    ],
)
def test_the_environment_of_the_user_wins(given: dict[str, str], added: dict[str, str]) -> None:
    environment = dict(given)
    make_threads_sleep(environment)
    assert environment == {**given, **added}


def test_the_policy_follows_torch() -> None:
    assert thread_policy().threads == 2
    torch.set_num_threads(3)
    assert thread_policy().threads == 3


def test_one_pool_is_left_as_it_is() -> None:
    made = Made(GNU)
    done = made.sharing.use(Owner(), ["torch"])
    assert (done.outcome, done.pools, made.quiet) == ("alone", ("torch",), {})


def test_mixed_pools_make_torchs_pool_quiet_until_the_last_owner_is_gone() -> None:
    made = Made(GNU)
    first, second = Owner(), Owner()
    done = made.sharing.use(first, ["onnxruntime", "torch"])
    assert (done.outcome, done.pools, done.threads) == ("quiet", ("onnxruntime", "torch"), 2)
    assert "libgomp.so.1" in str(done)
    assert made.sharing.use(second, ["openvino"]).detail == done.detail
    made.sharing.use(second, ["onnxruntime"])
    quiet = made.quiet[GNU]
    del first
    gc.collect()
    assert made.sharing.active and quiet.ended == 0
    del second
    gc.collect()
    assert not made.sharing.active and quiet.ended == 1
    kept = Owner()
    assert made.sharing.use(kept, ["openvino"]).outcome == "quiet"
    assert made.quiet[GNU] is not quiet


def test_a_decision_of_the_user_is_heeded_for_its_runtime_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "5000")
    owner, decided, both = Owner(), Made(GNU), Made(GNU, INTEL)
    done = decided.sharing.use(owner, ["openvino"])
    assert (done.outcome, decided.quiet) == ("environment", {}) and "GOMP_SPINCOUNT=5000" in done.detail
    assert both.sharing.use(owner, ["openvino"]).outcome == "quiet"
    assert set(both.quiet) == {INTEL}
    assert (kind_of(GNU), kind_of(INTEL)) == ("gnu", "intel")
    assert not decided_by_user("intel", {"GOMP_SPINCOUNT": "5000"})


def code(inputs: Sequence[Any]) -> list[Any]:
    return list(inputs)


def test_code_on_other_pools_is_called_while_torchs_threads_rest() -> None:
    made = Made(GNU)
    done = made.sharing.use(Owner(), ["onnxruntime"], parked=True)
    assert (done.outcome, made.quiet, made.sharing.active) == ("parked", {}, False) and "a stand-in" in done.detail
    assert made.sharing.parked("onnxruntime", code)([1]) == [GNU, 1]
    assert made.sharing.parked("torch", code) is code


def test_threads_rest_only_where_that_is_known_and_nobody_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner()
    for made in (Made(INTEL), Made(GNU, parks=False), Made(GNU, "/elsewhere/libgomp.so.1")):
        assert made.sharing.parked("openvino", code) is code
        assert made.sharing.use(owner, ["openvino"], parked=True).outcome == "quiet"
    monkeypatch.setattr(threads_module, "cores", lambda: 3)
    assert Made(GNU).sharing.parked("openvino", code) is code
    monkeypatch.setattr(threads_module, "cores", lambda: 2)
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    decided = Made(GNU)
    assert decided.sharing.parked("openvino", code) is code
    assert decided.sharing.use(owner, ["openvino"], parked=True).outcome == "environment"


def test_of_several_runtimes_torchs_own_is_the_one_that_it_brought_along() -> None:
    own = str(Path(torch.__file__).parent / "lib" / "libgomp.so.1")
    assert runtime_of_torch([GNU, own]) == own
    assert runtime_of_torch([GNU]) == GNU
    assert runtime_of_torch([GNU, INTEL]) is None and runtime_of_torch([]) is None


@pytest.mark.parametrize(("threads", "cores"), [(2, 3), (1, 1)])
def test_nothing_happens_where_all_pools_have_cores(monkeypatch: pytest.MonkeyPatch, threads: int, cores: int) -> None:
    torch.set_num_threads(threads)
    monkeypatch.setattr(threads_module, "cores", lambda: cores)
    made = Made(GNU)
    assert (made.sharing.use(Owner(), ["openvino"]).outcome, made.quiet) == ("enough cores", {})


@pytest.mark.parametrize("problem", [OSError("gone"), AttributeError("no such call"), RuntimeError("did not start")])
def test_a_runtime_that_cannot_be_stopped_is_named(problem: Exception) -> None:
    owner = Owner()
    done = Made(GNU, problem=problem).sharing.use(owner, ["openvino"])
    assert done.outcome == "unknown runtime"
    assert "libgomp.so.1" in done.detail and str(problem) in done.detail and "OMP_WAIT_POLICY" in done.detail
    assert Made().sharing.use(owner, ["openvino"]).outcome == "unknown runtime"


def test_a_forked_child_ends_nothing() -> None:
    made = Made(GNU)
    owner = Owner()
    made.sharing.use(owner, ["openvino"])
    made.sharing.after_fork()
    assert made.sharing.use(owner, ["openvino"]).outcome == "quiet"
    del owner
    gc.collect()
    assert made.quiet[GNU].ended == 0 and not made.sharing.active


class Foreign(Loopback):
    """A loopback that says that it has threads of its own."""

    name = "foreign"

    def traits(self) -> Traits:
        return Traits(thread_pool="foreign")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("backend", "acts"), [(Foreign, True), (Loopback, False)])
@pytest.mark.parametrize("parks", [True, False])
def test_an_environment_says_which_pools_it_uses(
    backend: type[Loopback],
    acts: bool,
    parks: bool,
    monkeypatch: pytest.MonkeyPatch,
    fresh_process: None,
    make_mixture: Callable[..., Mixture],
) -> None:
    made = Made(GNU, parks=parks)
    parked: list[str] = []
    monkeypatch.setattr(
        Parking, "around", lambda self, code: lambda inputs: (parked.append(self.path), code(inputs))[1]
    )
    sharing.act_through(*made.means)
    mixture = make_mixture(backend())
    value = torch.randn(4, 8)
    compiled = torch.compile(lambda x: x.sin() + 1, backend=mixture)
    for _ in range(2):
        assert torch.equal(compiled(value), value.sin() + 1)
    assert sharing.active is (acts and not parks)
    assert parked == [GNU] * 2 * (acts and parks)
    told = [event.detail for event in mixture.report().events if event.kind == "threads"]
    assert len(told) == acts and all("foreign, torch" in detail for detail in told)
    del compiled
    mixture.reset()
    torch._dynamo.reset()
    gc.collect()
    assert not sharing.active
