"""Graph breaks and recompilations in the report: where, why, and what is handed over."""

from __future__ import annotations

import torch

from mixbackend.compile.mixture import Mixture
from mixbackend.configuration import Config


def events_of(function, *calls, dynamic=None):
    torch._dynamo.reset()
    mixture = Mixture(Config().with_options({"backends": ["eager"]}))
    compiled = torch.compile(function, backend=mixture, dynamic=dynamic)
    with torch.no_grad():
        for arguments in calls:
            torch.testing.assert_close(compiled(*arguments), function(*arguments))
    return [event for event in mixture.report().events if event.kind in ("graph_break", "recompile")]


def broken(value):
    kept, other = value.sin(), value.cos()
    print(end="")
    return kept + other


def test_a_graph_break_is_told_once_with_its_line_and_what_crosses():
    (event,) = events_of(broken, (torch.ones(8, 4),), (torch.ones(8, 4),))
    assert event.kind == "graph_break"
    line = broken.__code__.co_firstlineno + 2
    assert f"compile/test_frame_events.py:{line} in broken" in event.detail
    assert "print" in event.detail and "2 tensors are handed over, 256 bytes" in event.detail
    assert "torch's hint: " in event.detail


def test_sizes_that_are_symbolic_have_no_bytes():
    (event, *_) = events_of(broken, (torch.ones(8, 4),), dynamic=True)
    assert "2 tensors are handed over;" in event.detail


def test_a_recompilation_is_told_with_the_guard_that_failed():
    (event,) = events_of(torch.relu, (torch.ones(3),), (torch.ones(3, dtype=torch.float64),))
    assert event.kind == "recompile" and "dtype" in event.detail


def test_a_whole_function_has_neither():
    assert events_of(lambda value: value.relu(), (torch.ones(3),), (torch.ones(3),)) == []
