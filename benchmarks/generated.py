"""What one model generates compiled, beside eager.

Place: under ``generators``, in the process of one model. Input: a model that generates, caches, prompts.
Output: a row per cache: for each prompt how many tokens in front equal eager's, how far scores are off, how many graphs
were handed to the backend until then; the last prompt is the first one again, asked of a second model of this class.
Invariants: nothing of one cache's compilations is left for the next.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

import torch

import mixbackend
from mixbackend.benchmarks.models.generators import Generator
from mixbackend.reporting.events import ORDINARY

_NO_PROBLEMS = ORDINARY | {"unverified"}
"""Kinds of events: what could not be proved right there is compared here."""

CACHES = ("dynamic", "static")
SCORES_OFF = 1e-4
"""Of the largest score: what float32 in another order of sums may be off by."""

Prompt = tuple[int, int]


class Row(TypedDict):
    """What was seen of a model with one cache.

    ``inductor`` says how many tokens in front are right there, if it was asked.
    """

    model: str
    cache: str
    way: str
    tokens: list[int]
    agreeing: list[int]
    scores_off: float
    graphs: list[int]
    expected_graphs: list[int]
    regions: dict[str, int]
    events: list[str]
    seconds: float
    problems: list[str]
    inductor: list[int]


@dataclass(frozen=True, slots=True)
class _Answer:
    tokens: torch.Tensor
    scores: torch.Tensor


@dataclass(slots=True)
class _Counted:
    """A backend that counts the graphs that it is handed."""

    backend: Callable[..., Any]
    graphs: int = 0
    after: list[int] = field(default_factory=list)

    def __call__(self, graph_module: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
        self.graphs += 1
        return self.backend(graph_module, inputs, **options)


def rows_of(
    generator: Generator, caches: Sequence[str], prompts: Sequence[Prompt], tokens: int, way: str, device: str = "cpu"
) -> Iterator[Row]:
    """A row per cache, as soon as it is known.

    Args:
        way: ``mixbackend``, or what torch knows as a backend.
        device: that models run on.
    """
    warnings.filterwarnings("ignore")
    for cache in caches:
        start = time.perf_counter()
        work = _Work(generator, cache, prompts, tokens, device)
        expected = work.answers(None)
        control = _Counted(lambda graph_module, inputs: graph_module)
        if way == "mixbackend":
            work.answers(control)
        mixture = mixbackend.auto()
        known = len(mixture.report().to_dict()["graphs"])
        counted = _Counted(mixture) if way == "mixbackend" else None
        found = work.answers(counted or way)
        agreeing = [_agreeing(mine.tokens, right.tokens) for mine, right in zip(found, expected, strict=True)]
        report = mixture.report().to_dict()
        row = Row(
            model=generator.name,
            cache=cache,
            way=way,
            tokens=[item.tokens.shape[-1] for item in expected],
            agreeing=agreeing,
            scores_off=max(_off(*pair) for pair in zip(found, expected, strict=True)),
            graphs=counted.after if counted else [],
            expected_graphs=control.after,
            regions=dict(
                Counter(region["backend"] for graph in report["graphs"][known:] for region in graph["regions"])
            ),
            events=sorted(
                {
                    f"{event['kind']} {event['graph']} {event['region']} {event['backend']}: {event['detail'][:400]}"
                    for event in report["events"]
                    if event["kind"] not in _NO_PROBLEMS
                }
            ),
            seconds=round(time.perf_counter() - start, 1),
            problems=[],
            inductor=[],
        )
        yield {**row, "problems": problems_of(row)}


@dataclass(frozen=True, slots=True)
class _Work:
    """What is generated, in eager and compiled."""

    generator: Generator
    cache: str
    prompts: Sequence[Prompt]
    tokens: int
    device: str

    def answers(self, backend: _Counted | str | None) -> list[_Answer]:
        """Of two models in turn; the second is asked the first prompt alone."""
        torch.compiler.reset()
        found = []
        for seed, asked in enumerate((self.prompts, self.prompts[:1])):
            model = self.generator.model(seed).to(self.device)
            if backend is not None:
                model.forward = torch.compile(model.forward, backend=backend)
            for batch, length in asked:
                found.append(self._answer(model, batch, length))
                if isinstance(backend, _Counted):
                    backend.after.append(backend.graphs)
        return found

    def _answer(self, model: Any, batch: int, length: int) -> _Answer:
        prompt = {name: value.to(self.device) for name, value in self.generator.prompt(model, batch, length).items()}
        with torch.no_grad():
            given = model.generate(
                **prompt,
                do_sample=False,
                max_new_tokens=self.tokens,
                min_new_tokens=self.tokens,
                cache_implementation=self.cache,
                disable_compile=True,
                return_dict_in_generate=True,
                output_scores=True,
            )
        return _Answer(given.sequences[:, -self.tokens :], torch.stack(given.scores))


def _agreeing(mine: torch.Tensor, right: torch.Tensor) -> int:
    """How many tokens in front are equal in all rows of the batch."""
    wrong = (mine != right).any(0).nonzero()
    return int(wrong[0]) if len(wrong) else right.shape[-1]


def _off(mine: _Answer, right: _Answer) -> float:
    """Largest distance of a score, of the largest score, over the steps with equal earlier tokens."""
    steps = min(_agreeing(mine.tokens, right.tokens) + 1, right.tokens.shape[-1])
    known = right.scores[:steps].isfinite()
    mine_known, right_known = mine.scores[:steps][known], right.scores[:steps][known]
    return float((mine_known - right_known).abs().max() / right_known.abs().max())


def problems_of(row: Row) -> list[str]:
    """What is wrong but for the tokens, on which inductor has a word."""
    found = list(row["events"])
    if not row["scores_off"] <= SCORES_OFF:
        found.append(f"scores are off by {row['scores_off']:.1e}")
    if row["way"] == "mixbackend" and row["graphs"] != row["expected_graphs"]:
        found.append(f"graphs {row['graphs']} where torch makes {row['expected_graphs']}")
    return found
