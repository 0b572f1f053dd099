"""Three tiers of tests: ``--tier smoke``, ``test`` (the default) and ``nightly``.

Place: hooks that ``conftest`` takes over. A test that is marked ``smoke`` runs in all tiers, one that is marked
``nightly`` only there. Of a parametrised test that is marked ``sampled(n)``, ``test`` runs ``n`` cases, spread evenly
over their order, and ``nightly`` all of them; ``draws`` is the same for examples of a property. Tests that are marked
``alone`` come last, whatever has changed the order: each waits for what other workers are at, which in the middle is
often long, and among themselves it is short.
Invariants: a tier runs the same tests everywhere and always; what is left out counts as deselected, not as passed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import pytest

TIERS = ("smoke", "test", "nightly")
_chosen = ["test"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--tier``."""
    parser.addoption("--tier", choices=TIERS, default="test", help="which tests run (default: test)")


def pytest_configure(config: pytest.Config) -> None:
    """Before files are collected, which ask for ``draws`` while they are imported."""
    _chosen[:] = [config.getoption("--tier")]
    config.pluginmanager.register(_AloneLast())


class _AloneLast:
    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: item.get_closest_marker("alone") is not None)


def draws(by_day: int, by_night: int) -> int:
    """So many examples does a property have in the tier that runs."""
    return by_night if _chosen == ["nightly"] else by_day


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what is not of the tier; before others change the order."""
    kept = {id(item) for item in of_tier(items, config.getoption("--tier"))}
    left_out = [item for item in items if id(item) not in kept]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if id(item) in kept]


def of_tier(items: Iterable[pytest.Item], tier: str) -> list[pytest.Item]:
    """The tests of a tier; the cases of one test stand together."""
    if tier == "nightly":
        return list(items)
    if tier == "smoke":
        return [item for item in items if item.get_closest_marker("smoke")]
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if not item.get_closest_marker("nightly"):
            cases[item.nodeid.partition("[")[0]].append(item)
    return [item for found in cases.values() for item in _sample(found)]


def _sample(cases: Sequence[pytest.Item]) -> Sequence[pytest.Item]:
    """Cases of one test: all of them, or as many as it is marked with, the first and the last among them."""
    marker = cases[0].get_closest_marker("sampled")
    if marker is None or len(cases) <= marker.args[0]:
        return cases
    number = marker.args[0]
    places = {round(place * (len(cases) - 1) / max(number - 1, 1)) for place in range(number)}
    return [case for place, case in enumerate(cases) if place in places]
