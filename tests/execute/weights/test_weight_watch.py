"""What is asked of the weights at every call: are these the very tensors, and is nothing of them changed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mixbackend.execute.weights.watch import WeightWatch

PLACES = (3, 0, 2)


def weights(count: int = 3) -> list[torch.Tensor]:
    return [nn.Parameter(torch.full((8, number + 1), float(number))) for number in range(count)]


def call_with(values: list[torch.Tensor]) -> list[object]:
    """Arguments of a call: weights at their places, an image between them."""
    arguments: list[object] = [None, torch.zeros(2), None, None]
    for place, value in zip(PLACES, values, strict=True):
        arguments[place] = value
    return arguments


def test_the_very_tensors_are_found_at_their_places():
    values = weights()
    watch = WeightWatch(values, PLACES)
    assert all(watch.unchanged(call_with(values)) for _ in range(40))
    assert not watch.unchanged(call_with([values[1], values[0], values[2]]))
    assert not watch.unchanged(call_with([*values[:2], nn.Parameter(values[2].detach().clone())]))


def test_other_tensors_are_no_change():
    values = weights()
    watch = WeightWatch(values, PLACES)
    assert not watch.unchanged(call_with(weights()))
    assert watch.change() == ""
    assert watch.unchanged(call_with(values))


def test_without_places_weights_come_first():
    values = weights()
    watch = WeightWatch(values)
    assert watch.unchanged([*values, torch.zeros(2)])
    assert not watch.unchanged([torch.zeros(2), *values])


@pytest.mark.parametrize("position", range(40))
def test_a_change_of_any_of_many_weights_is_seen_and_remembered(position):
    """More weights than are fetched ahead, so that the first, the last and those between are looked at."""
    values = weights(40)
    watch = WeightWatch(values)
    with torch.no_grad():
        values[position].add_(1)
    assert not watch.unchanged([*values])
    assert watch.change() == "a counted write"
    assert not watch.unchanged([*values])


@pytest.mark.parametrize(
    ("edit", "change"),
    [
        (lambda weight: setattr(weight, "data", weight.data.clone()), "another address"),
        (lambda weight: weight.data.fill_(-3.0), "other content"),
    ],
)
def test_what_changed_is_told_in_words(edit, change):
    values = weights()
    watch = WeightWatch(values, PLACES)
    edit(values[1])
    assert not watch.unchanged(call_with(values))
    assert watch.change() == change


def test_fewer_arguments_than_places_are_an_error():
    values = weights()
    with pytest.raises(IndexError):
        WeightWatch(values, PLACES).unchanged(values[:1])
