"""The two things the demo does with the sentence encoder: embed sentences, and fine-tune a classifier of topics.

Place: computation behind ``mixbackend demo``; it prints nothing. Input: how to compile (any function of a callable).
Output: frozen values that hold eager's result beside the compiled one.
Invariants: both runs start from the same weights and the same random state and see the same batches.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from mixbackend.benchmarks.models.sentence_encoder import Batch, SentenceEncoder, sentences, tokenize

Compile = Callable[[Any], Any]
Progress = Callable[[str], None]

EMBED_BATCH = 32
TRAIN_BATCH = 25
TRAINED_LAYERS = 2
SEED = 7


@dataclass(frozen=True, slots=True)
class Agreement:
    """How close compiled embeddings are to eager's: least cosine of a sentence's two vectors, largest difference."""

    sentences: int
    least_cosine: float
    largest_difference: float
    lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A sentence near to the query."""

    similarity: float
    topic: str
    sentence: str


@dataclass(frozen=True, slots=True)
class FineTuning:
    """Loss per step, eager and compiled, and the share of sentences with the right topic, before and after."""

    eager_losses: tuple[float, ...]
    losses: tuple[float, ...]
    right_before: float
    right_after: float

    @property
    def largest_difference(self) -> float:
        """Between the two curves."""
        return max(abs(left - right) for left, right in zip(self.eager_losses, self.losses, strict=True))


class TopicClassifier(nn.Module):
    """The encoder with a linear layer that tells topics apart; only that layer and the last blocks learn."""

    def __init__(self, encoder: SentenceEncoder, topics: int) -> None:
        super().__init__()
        self.encoder = encoder.requires_grad_(False)
        layers: Any = encoder.bert.encoder.layer  # type: ignore[union-attr]
        for layer in layers[-TRAINED_LAYERS:]:
            layer.requires_grad_(True)
        self.head = nn.Linear(encoder.bert.config.hidden_size, topics)  # type: ignore[union-attr, arg-type]

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        # Unit vectors times ten: a softmax over values below one could not become certain.
        return self.head(10.0 * self.encoder(ids, mask))


def embed_all(encode: Callable[[Tensor, Tensor], Tensor], batches: Sequence[Batch]) -> Tensor:
    """Embeddings in the order of the sentences."""
    rows = [row for batch in batches for row in batch.rows]
    with torch.no_grad():
        vectors = torch.cat([encode(batch.ids, batch.mask) for batch in batches])
    return vectors[torch.tensor(rows).argsort()]


def embed(encoder: SentenceEncoder, compile_: Compile, query: str) -> tuple[Agreement, list[Neighbour]]:
    """Embed all sentences by both, and find the compiled embeddings nearest to the query's."""
    labelled = sentences()
    batches = tokenize([sentence for _, sentence in labelled], EMBED_BATCH)
    compiled = compile_(encoder)
    expected, found = embed_all(encoder, batches), embed_all(compiled, batches)
    agreement = Agreement(
        sentences=len(labelled),
        least_cosine=F.cosine_similarity(expected, found, dim=1).min().item(),
        largest_difference=(expected - found).abs().max().item(),
        lengths=tuple(batch.ids.size(1) for batch in batches),
    )
    # A batch of one would be a shape of its own to compile; a query beside other sentences is not.
    vector = embed_all(compiled, tokenize([query, *(sentence for _, sentence in labelled[:7])], 8))[0]
    similarity, order = (found @ vector).sort(descending=True)
    return agreement, [Neighbour(similarity[i].item(), *labelled[order[i]]) for i in range(5)]


def fine_tune(encoder: SentenceEncoder, compile_: Compile, steps: int, show: Progress) -> FineTuning:
    """Train the classifier for some steps in eager and compiled, from the same start."""
    labelled = sentences()
    topics = sorted({topic for topic, _ in labelled})
    labels = torch.tensor([topics.index(topic) for topic, _ in labelled])
    (padded,) = tokenize([sentence for _, sentence in labelled], len(labelled), sort=False)
    torch.manual_seed(SEED)
    classifier = TopicClassifier(copy.deepcopy(encoder), len(topics))
    before = _share_right(classifier, padded, labels)
    eager = copy.deepcopy(classifier)
    show("fine-tuning in eager")
    eager_losses = _train(eager, eager, padded, labels, steps)
    show("fine-tuning compiled")
    losses = _train(classifier, compile_(classifier), padded, labels, steps)
    return FineTuning(tuple(eager_losses), tuple(losses), before, _share_right(classifier, padded, labels))


def _train(module: nn.Module, call: Callable[..., Tensor], data: Batch, labels: Tensor, steps: int) -> list[float]:
    """Losses of ``steps`` steps; dropout is on and draws the same numbers in every run."""
    module.train()
    learning = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=3e-4)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SEED))
    torch.manual_seed(SEED)
    losses = []
    for step in range(steps):
        start = step * TRAIN_BATCH % (len(order) - TRAIN_BATCH + 1)
        rows = order[start : start + TRAIN_BATCH]
        optimizer.zero_grad()
        loss = F.cross_entropy(call(data.ids[rows], data.mask[rows]), labels[rows])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def _share_right(classifier: nn.Module, data: Batch, labels: Tensor) -> float:
    classifier.eval()
    with torch.no_grad():
        return (classifier(data.ids, data.mask).argmax(1) == labels).double().mean().item()
