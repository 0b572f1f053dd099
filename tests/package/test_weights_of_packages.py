"""Weights are stored once, in a form that the library of safetensors reads, and come back in the file's memory."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import pytest
import torch

from mixbackend.contracts import PackageError
from mixbackend.package.weights import ALIGNMENT, MappedWeights, stored_weights, write_weights


def through_a_file(
    weights: dict[str, torch.Tensor], path: Path, written: frozenset[str] = frozenset()
) -> tuple[dict[str, torch.Tensor], int]:
    """What comes back, and how many tensors were stored."""
    stored, described = stored_weights(weights, written)
    with path.open("wb") as file:
        write_weights(stored, file.write)
    with path.open("rb") as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    mapped = MappedWeights(content, 0, len(content))
    return {name: mapped.tensor(item) for name, item in described.items()}, len(stored)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    form, other_form = ((item.shape, item.stride(), item.dtype) for item in (one, other))
    return form == other_form and torch.equal(one, other)


DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
]


def test_every_type_and_layout_comes_back(tmp_path: Path) -> None:
    weights = {str(dtype): torch.randn(5, 3).to(dtype) for dtype in DTYPES}
    base = torch.randn(6, 8)
    weights |= {"turned": base.t(), "part": torch.randn(9, 9)[2:5, 1::3], "spread": torch.randn(4, 1).expand(4, 7)}
    weights |= {
        "empty": torch.empty(0, 3),
        "number": torch.tensor(2.5),
        "last": torch.randn(2, 4, 3, 3).to(memory_format=torch.channels_last),
    }
    found, _ = through_a_file(weights, tmp_path / "w.safetensors")
    assert list(found) == list(weights)
    assert [name for name in weights if not same(found[name], weights[name])] == []


def test_shared_memory_is_stored_once_and_shared_again(tmp_path: Path) -> None:
    base = torch.randn(64, 64)
    weights = {"whole": base, "again": base.view(64, 64), "row": base[3], "turned": base.t(), "equal": base.clone()}
    found, count = through_a_file(weights, tmp_path / "w.safetensors", frozenset({"row"}))
    assert count == 2 and all(same(found[name], weights[name]) for name in weights)
    found["row"].fill_(7.0)
    assert (found["whole"][3] == 7).all() and (found["turned"][:, 3] == 7).all()
    assert torch.equal(found["equal"], base), "what is equal and not written stays as it is"


def test_equal_weights_are_stored_once_unless_they_are_written(tmp_path: Path) -> None:
    weights = {"one": torch.zeros(100), "two": torch.zeros(100), "other": torch.zeros(100, dtype=torch.int32)}
    assert through_a_file(weights, tmp_path / "w.safetensors")[1] == 2
    found, count = through_a_file(weights, tmp_path / "w.safetensors", frozenset({"one", "two"}))
    found["one"].add_(1)
    assert count == 3 and (found["two"] == 0).all()


def test_the_library_reads_them(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    weights = {"a": torch.randn(3, 5), "b": torch.randn(7).to(torch.bfloat16), "c": torch.tensor([True, False, True])}
    through_a_file(weights, tmp_path / "w.safetensors")
    read = safetensors.load_file(tmp_path / "w.safetensors")
    assert all(torch.equal(read[name], weights[name]) for name in weights)


def test_they_lie_aligned(tmp_path: Path) -> None:
    found, _ = through_a_file({str(size): torch.ones(size) for size in (1, 3, 17, 64)}, tmp_path / "w.safetensors")
    begins = {tensor.data_ptr() % ALIGNMENT for tensor in found.values()}
    assert begins == {0}


def test_what_safetensors_has_no_name_for_is_refused() -> None:
    with pytest.raises(PackageError, match=r"the weight w is of torch\.complex128"):
        stored_weights({"w": torch.zeros(2, dtype=torch.complex128)}, frozenset())
    base = torch.zeros(8)
    with pytest.raises(
        PackageError, match="the program writes into a, and other weights read its memory as another type"
    ):
        stored_weights({"a": base, "b": base.view(torch.int32)}, frozenset({"a"}))


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 8, b"\x02\0\0\0\0\0\0\0[]", b"\x05\0\0\0\0\0\0\0{bad}", b"\x40\0\0\0\0\0\0\0{}"]
)
def test_what_is_no_file_of_weights_is_an_error(content: bytes) -> None:
    with pytest.raises(PackageError, match="the weights of the package"):
        MappedWeights(bytearray(content), 0, len(content))


def test_tensors_outside_of_the_file_are_an_error(tmp_path: Path) -> None:
    stored, described = stored_weights({"w": torch.ones(4)}, frozenset())
    pieces: list[Any] = []
    write_weights(stored, lambda piece: pieces.append(bytes(piece)))
    content = bytearray(b"".join(pieces).replace(b'"data_offsets": [0, 16]', b'"data_offsets": [8, 999]'))
    with pytest.raises(PackageError, match="no tensor 'w' that can be read"):
        MappedWeights(content, 0, len(content)).tensor(described["w"])
