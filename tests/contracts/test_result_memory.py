"""Large results lie in memory that was there before, and in none that anybody still holds."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from mixbackend.contracts import new_result, result_memory
from mixbackend.contracts.result_memory import LARGEST_KEPT_BYTES, KeptMemory, forget_unused_results

ROWS, COLUMNS = 3, LARGEST_KEPT_BYTES // 8
SIZE = ROWS * COLUMNS * 4


@pytest.fixture(autouse=True)
def _no_others() -> Iterator[None]:
    """Nothing that earlier results lay in is taken, and nothing of these is left."""
    forget_unused_results()
    yield
    forget_unused_results()


def result() -> torch.Tensor:
    return new_result((ROWS, COLUMNS), (COLUMNS, 1), torch.float32)


def faults(run: Callable[[], object]) -> int:
    """Of this process, those without reading from a disk."""
    before = _faults()
    run()
    return _faults() - before


def _faults() -> int:
    return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[7])


def test_results_are_what_was_asked_for() -> None:
    plain = result()
    assert (plain.shape, plain.stride(), plain.dtype) == ((ROWS, COLUMNS), (COLUMNS, 1), torch.float32)
    assert plain.untyped_storage().nbytes() == SIZE, "saving a result saves nothing else"
    columns = new_result((ROWS, COLUMNS), (1, ROWS), torch.int64)
    assert (columns.stride(), columns.dtype) == ((1, ROWS), torch.int64)
    with_gaps = new_result((ROWS, COLUMNS), (2 * COLUMNS, 1), torch.float32)
    assert with_gaps.untyped_storage().nbytes() == 5 * COLUMNS * 4
    assert not plain.requires_grad and not plain._is_view()
    assert plain.resize_(ROWS + 1, COLUMNS).shape == (ROWS + 1, COLUMNS)


@pytest.mark.parametrize("shape", [(), (0, LARGEST_KEPT_BYTES), (5,), (2, 3)])
def test_small_results_are_torchs_own(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeptMemory, "take", lambda *_: pytest.fail("memory was kept for it"))
    made = new_result(shape, torch.empty(shape).stride(), torch.float32)
    assert made.shape == shape and made.untyped_storage().nbytes() == made.numel() * 4


def test_dropped_results_cost_no_page_faults() -> None:
    if not Path("/proc/self/stat").exists():
        pytest.skip("counts page faults of Linux")
    first = result().fill_(1)
    address = first.data_ptr()
    del first

    def again() -> None:
        later = result().fill_(2)
        assert later.data_ptr() == address and (later[-1, -10:] == 2).all()

    assert faults(again) < SIZE / mmap.PAGESIZE / 100


def test_new_results_take_few_faults_where_pages_are_large() -> None:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists() or "[never]" in setting.read_text():
        pytest.skip("this system has no large pages")
    few, ones = SIZE / mmap.PAGESIZE / 8, b"1" * SIZE
    with mmap.mmap(-1, SIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as plain:
        plain.madvise(mmap.MADV_HUGEPAGE)
        if faults(lambda: plain.write(ones)) >= few:
            pytest.skip("no large page is free: the system's memory is in pieces")
    assert faults(lambda: result().fill_(1)) < few, "but for what is left at both ends"


def test_without_advice_memory_is_made_as_well() -> None:
    piece = torch.empty(0, dtype=torch.uint8).set_(KeptMemory(SIZE, None).take(SIZE))
    assert len(piece) == SIZE and (piece.fill_(1) == 1).all()


def test_what_is_advised_is_within_the_piece() -> None:
    asked: list[tuple[int, int, int]] = []
    taken = KeptMemory(SIZE, lambda *given: asked.append(given) or 0).take(SIZE)
    ((first, length, _),) = asked
    assert first % mmap.PAGESIZE == 0 and first >= taken.data_ptr()
    assert first + length == taken.data_ptr() + SIZE


HOLDERS: dict[str, Callable[[torch.Tensor], object]] = {
    "the tensor": lambda made: made,
    "a view": lambda made: made[1:, :5],
    "another type": lambda made: made.view(torch.int32),
    "a detached tensor": lambda made: made.detach(),
    "an array": lambda made: made.numpy(),
    "part of an array": lambda made: made.numpy()[1:2],
    "a storage": lambda made: made.untyped_storage(),
    "a typed storage": lambda made: made.storage(),
    "a capsule": lambda made: torch.utils.dlpack.to_dlpack(made),
    "a parameter": lambda made: torch.nn.Parameter(made),
    "a graph": lambda made: torch.ones((), requires_grad=True) * made,
    "a closure": lambda made: lambda: made,
}


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("holder", HOLDERS)
def test_what_anybody_holds_is_not_written(holder: str) -> None:
    made = result()
    address = made.data_ptr()
    held = HOLDERS[holder](made)
    del made
    others = [result() for _ in range(3)]
    assert address not in {other.data_ptr() for other in others}
    del held
    assert address in {other.data_ptr() for other in [*others, result()]}


def test_what_another_process_may_hold_is_never_taken_again() -> None:
    made = result()
    made.share_memory_()
    address = made.data_ptr()
    del made
    assert address not in {one.data_ptr() for one in [result(), result()]}
    assert not any(piece.is_shared() for piece in result_memory._KEPT._pieces), "it lives as long as its holders"


def test_a_result_that_was_resized_is_no_result_of_its_old_size() -> None:
    made = result()
    made.resize_(2 * ROWS, COLUMNS)
    del made
    later = result()
    assert later.untyped_storage().nbytes() == SIZE and (later.fill_(1) == 1).all()


def test_no_more_is_kept_than_the_limit_even_if_all_results_are_dropped_at_once() -> None:
    kept = KeptMemory(2 * SIZE, None)
    pieces = [kept.take(SIZE + 64 * place) for place in range(5)]
    del pieces
    assert [piece.nbytes for piece in kept._pieces] == [SIZE + 64 * 4], "two would be above the limit by some bytes"
    newest = kept.take(SIZE - 64 * 4)
    assert len(kept._pieces) == 2
    del newest
    kept.forget_unused()
    assert not kept._pieces


def test_what_is_larger_than_the_limit_is_not_kept() -> None:
    kept = KeptMemory(2 * SIZE, None)
    small = kept.take(SIZE)
    assert kept.take(2 * SIZE + 1).nbytes() == 2 * SIZE + 1
    assert not kept._pieces and small.nbytes() == SIZE


def test_memory_is_given_back_when_asked() -> None:
    held, dropped = result(), result()
    del dropped
    forget_unused_results()
    assert len(result_memory._KEPT._pieces) == 1
    assert result().data_ptr() != held.data_ptr()


def test_threads_never_share_a_result() -> None:
    def is_mine(number: int) -> bool:
        mine = new_result((9 << 20,), (1,), torch.float32)
        mine[::4096] = number
        return bool((mine[::4096] == number).all())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(is_mine, range(80)))
