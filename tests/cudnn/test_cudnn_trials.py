"""Ways are run against one another once per question, on values like the model's."""

from __future__ import annotations

import itertools

import pytest
import torch

from mixbackend.backends.common.fastest_ways import FastestWays
from mixbackend.backends.cudnn import trials
from mixbackend.contracts import TensorMeta


@pytest.fixture
def process(tmp_path):
    """Begins like a new process: it knows what is in the folder."""
    return lambda gpu="a GPU": trials.Trials(FastestWays(lambda: tmp_path), lambda: gpu)


@pytest.fixture
def gpu_of_fakes(monkeypatch):
    """CUDA events that count, instead of a GPU: a way adds to the clock what it takes."""
    clock = itertools.count()
    now = [0.0]

    class Event:
        def __init__(self, enable_timing):
            next(clock)

        def record(self):
            self.at = now[0]

        def synchronize(self):
            pass

        def elapsed_time(self, other):
            return other.at - self.at

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "Event", Event)

    def way(milliseconds):
        def run():
            if milliseconds is None:
                raise RuntimeError("no kernel for this shape")
            now[0] += milliseconds
            return torch.ones(1)

        return run

    return way


def test_the_fastest_way_that_runs_wins(gpu_of_fakes, process):
    fastest = process().fastest
    assert fastest("xyz", ["a"], lambda: [gpu_of_fakes(3), gpu_of_fakes(1), gpu_of_fakes(2)]) == 1
    assert fastest("xy", ["b"], lambda: [gpu_of_fakes(None), gpu_of_fakes(5)]) == 1
    assert fastest("xy", ["c"], lambda: [gpu_of_fakes(None), gpu_of_fakes(None)]) == 0


def test_a_question_is_asked_once(gpu_of_fakes, process):
    asked, one = [], process()
    for _ in range(3):
        one.fastest("x", ["once"], lambda: asked.append(1) or [gpu_of_fakes(1)])
    assert len(asked) == 1


def test_later_processes_know_the_answer_and_run_nothing(gpu_of_fakes, process):
    assert process().fastest("xy", ["a", None], lambda: [gpu_of_fakes(2), gpu_of_fakes(1)]) == 1
    later = process()
    assert later.fastest("xy", ["a", None], lambda: pytest.fail("known")) == 1
    # Other ways, another question, another GPU: nothing is known.
    assert later.fastest("xz", ["a", None], lambda: [gpu_of_fakes(1), gpu_of_fakes(2)]) == 0
    assert later.fastest("xy", ["b", None], lambda: [gpu_of_fakes(1), gpu_of_fakes(2)]) == 0
    other = process("another GPU")
    assert other.fastest("xy", ["a", None], lambda: [gpu_of_fakes(1), gpu_of_fakes(2)]) == 0


def test_ways_none_of_which_ran_are_tried_again_by_later_processes(gpu_of_fakes, process):
    assert process().fastest("xy", ["a"], lambda: [gpu_of_fakes(None), gpu_of_fakes(None)]) == 0
    assert process().fastest("xy", ["a"], lambda: [gpu_of_fakes(None), gpu_of_fakes(1)]) == 1


def test_without_a_gpu_the_first_way_counts_and_nothing_is_made(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert trials.fastest("x", ["none"], lambda: pytest.fail("nothing can be run")) == 0


def test_values_have_the_layout_of_the_model_and_leave_its_random_stream_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    cpu = torch.device("cpu")
    expanded = trials.stand_in(TensorMeta((4, 2, 3), (0, 3, 1), torch.float16, cpu))
    assert expanded.stride() == (0, 3, 1)
    assert torch.equal(expanded[0], expanded[3])
    sliced = trials.stand_in(TensorMeta((2, 5), (15, 1), torch.float32, cpu))
    assert sliced.stride() == (15, 1)
    assert float(sliced.std()) > 0
    assert torch.equal(before, torch.get_rng_state())
