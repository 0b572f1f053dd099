"""Constants: code that was made for known weights, and made again for others."""

from __future__ import annotations

import torch

from mixbackend.certify.tested import NotAsked, Problem, Tested, eager_refuses, named
from mixbackend.certify.variants import other_values
from mixbackend.contracts import InputRole


def bound(tested: Tested) -> Problem | None:
    """Bound code is right, and stays so for its own values after others were bound; binding writes nothing."""
    bind, region = tested.compiled.bind, tested.region
    places = [place for place, item in enumerate(region.inputs) if item.role is InputRole.CONSTANT]
    if bind is None or not places:
        raise NotAsked("it makes no code for known constants" if places else "no input is a constant")
    inputs = tested.inputs()
    first = [inputs[place] if place in places else None for place in range(len(inputs))]
    before = [inputs[place].clone() for place in places]
    run = bind(first).run
    if not all(torch.equal(inputs[place], value) for place, value in zip(places, before, strict=True)):
        return Problem("constants", "binding wrote into the constants")
    if problem := named("constants", tested.judged(inputs, run), "with bound constants"):
        return problem
    changed = other_values(region, tested.case.inputs)
    if changed is None or eager_refuses(region, changed):
        return None
    second = bind([changed[place] if place in places else None for place in range(len(inputs))]).run
    if problem := named("constants", tested.judged(changed, second), "with constants bound a second time"):
        return problem
    return named("constants", tested.judged(inputs, run), "with the first constants, after others were bound")
