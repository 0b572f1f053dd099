"""Plans as plain data: what JSON holds.

Place: between a ``Plan`` and what keeps it, as the database. Output: mappings, lists, texts, numbers.
Invariants: ``plan_from_data(plan_to_data(plan)) == plan``, to the last bit of every number.
Non-goals: checking a plan against a graph; see ``contracts.check_plan``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from mixbackend.contracts import REFUSAL_CODES, PlacementError, Plan, PlannedRegion, Refusal

VERSION = 1
_PHASES = ("inference", "forward", "backward")
_Item = TypeVar("_Item")


def plan_to_data(plan: Plan) -> dict[str, Any]:
    """A plan as plain data."""
    return {
        "version": VERSION,
        "graph": plan.graph_id,
        "phase": plan.phase,
        "dynamic": plan.dynamic,
        "estimated_s": plan.estimated_s,
        "lower_bound_s": plan.lower_bound_s,
        "search": plan.search,
        "width": plan.width,
        "single_backend_s": dict(plan.single_backend_s),
        "regions": [_region_to_data(region) for region in plan.regions],
        "refusals": [
            {"node": item.node, "backend": item.backend, "code": item.code, "detail": item.detail}
            for item in plan.refusals
        ],
    }


def _region_to_data(region: PlannedRegion) -> dict[str, Any]:
    data: dict[str, Any] = {
        "id": region.id,
        "backend": region.backend,
        "estimated_s": region.estimated_s,
        "nodes": list(region.nodes),
    }
    if region.copies:
        data["copies"] = list(region.copies)
    if region.matches:
        data["matches"] = [{"pattern": pattern, "nodes": list(nodes)} for pattern, nodes in region.matches]
    return data


def plan_from_data(data: Any) -> Plan:
    """The plan that plain data describes.

    Raises:
        PlacementError: the data is not that of a plan of this version; names the place.
    """
    if not isinstance(data, Mapping) or data.get("version") != VERSION:
        found = data.get("version") if isinstance(data, Mapping) else type(data).__name__
        raise PlacementError(what=f"not a plan of version {VERSION} (found {found!r})", hint="make the plan again")
    return Plan(
        graph_id=_text(data, "graph", "plan"),
        phase=_one_of(data, "phase", "plan", _PHASES),
        dynamic=_field(data, "dynamic", "plan", bool),
        regions=tuple(_each(data, "regions", _region_from_data)),
        refusals=tuple(_each(data, "refusals", _refusal_from_data)),
        estimated_s=_number(data, "estimated_s", "plan"),
        lower_bound_s=_number(data, "lower_bound_s", "plan"),
        single_backend_s=tuple(
            (str(name), _as_number(seconds, f"plan.single_backend_s.{name}"))
            for name, seconds in _field(data, "single_backend_s", "plan", Mapping).items()
        ),
        width=_field(data, "width", "plan", int),
        search=_text(data, "search", "plan"),
    )


def _region_from_data(data: Mapping[str, Any], place: str) -> PlannedRegion:
    return PlannedRegion(
        id=_text(data, "id", place),
        backend=_text(data, "backend", place),
        nodes=_names(data, "nodes", place),
        copies=_names(data, "copies", place) if "copies" in data else (),
        matches=tuple(
            (_text(item, "pattern", f"{place}.matches"), _names(item, "nodes", f"{place}.matches"))
            for item in (_field(data, "matches", place, list) if "matches" in data else [])
        ),
        estimated_s=_number(data, "estimated_s", place),
    )


def _refusal_from_data(data: Mapping[str, Any], place: str) -> Refusal:
    code = _one_of(data, "code", place, REFUSAL_CODES)
    return Refusal(_text(data, "node", place), _text(data, "backend", place), code, _text(data, "detail", place))


def _each(data: Mapping[str, Any], key: str, make: Callable[[Mapping[str, Any], str], _Item]) -> list[_Item]:
    items = _field(data, key, "plan", list)
    return [make(item, f"plan.{key}[{index}]") for index, item in enumerate(items)]


def _field(data: Any, key: str, place: str, kind: type) -> Any:
    if not isinstance(data, Mapping) or key not in data:
        raise PlacementError(what=f"{place} has no {key!r}")
    if not isinstance(data[key], kind):
        raise PlacementError(what=f"{place}.{key} is {data[key]!r}, needed {kind.__name__}")
    return data[key]


def _text(data: Any, key: str, place: str) -> str:
    return _field(data, key, place, str)


def _number(data: Any, key: str, place: str) -> float:
    return _as_number(_field(data, key, place, object), f"{place}.{key}")


def _as_number(value: Any, place: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise PlacementError(what=f"{place} is {value!r}, needed a number of seconds")
    return float(value)


def _names(data: Any, key: str, place: str) -> tuple[str, ...]:
    names = _field(data, key, place, list)
    wrong = [name for name in names if not isinstance(name, str)]
    if wrong:
        raise PlacementError(what=f"{place}.{key} holds {wrong[0]!r}, needed names of nodes")
    return tuple(names)


def _one_of(data: Any, key: str, place: str, allowed: tuple[str, ...]) -> Any:
    value = _text(data, key, place)
    if value not in allowed:
        raise PlacementError(what=f"{place}.{key} is {value!r}, needed one of {', '.join(allowed)}")
    return value
