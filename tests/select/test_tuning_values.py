"""Values of a call through files: what comes back is what went in, down to memory that is shared."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mixbackend.select.values import read_values, write_values


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.complex64]
)
def test_every_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    value = (torch.arange(12) % 3).to(dtype).reshape(3, 4)
    write_values(tmp_path, [value])
    (read,) = read_values(tmp_path)
    assert read.dtype == dtype and torch.equal(read, value)


def test_strides_offsets_and_sharing(tmp_path: Path) -> None:
    base = torch.randn(4, 6)
    values = [base, base[1:, ::2].t(), torch.empty(0, 3), torch.randn(2).expand(5, 2), torch.tensor(7.0)]
    write_values(tmp_path, values)
    read = read_values(tmp_path)
    for before, after in zip(values, read, strict=True):
        assert (after.shape, after.stride(), after.storage_offset()) == (
            before.shape,
            before.stride(),
            before.storage_offset(),
        )
        assert torch.equal(after, before)
    read[0].zero_()
    assert not read[1].any()
    assert base.any()


def test_numbers(tmp_path: Path) -> None:
    write_values(tmp_path, [3, 2.5, True])
    assert read_values(tmp_path) == [3, 2.5, True]


def test_the_original_keeps_its_values(tmp_path: Path) -> None:
    value = torch.ones(3, requires_grad=True)
    write_values(tmp_path, [value])
    (read,) = read_values(tmp_path)
    read.add_(1.0)
    assert value.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("value", [torch.eye(2).to_sparse(), "text", None, torch.ones(2, dtype=torch.complex64).conj()])
def test_what_has_no_bytes_of_its_own_is_refused(tmp_path: Path, value: object) -> None:
    with pytest.raises(TypeError, match="cannot be carried"):
        write_values(tmp_path, [value])


def test_a_file_that_was_cut_short(tmp_path: Path) -> None:
    write_values(tmp_path, [torch.randn(100)])
    data = (tmp_path / "values.bin").read_bytes()
    (tmp_path / "values.bin").write_bytes(data[:40])
    with pytest.raises(ValueError, match="cut short"):
        read_values(tmp_path)
