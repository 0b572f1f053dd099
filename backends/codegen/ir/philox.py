"""Random numbers as torch's kernels on NVIDIA GPUs draw them: the meaning of the scalar operator ``uniform``.

Place: below ``scalar``; targets are held against it.
torch's kernels run a fixed number of threads. Each has a stream of its own (Philox 4x32 with ten rounds, Salmon et al.
2011), begins where the generator's offset says, and takes four numbers at a time. Which number belongs to which element
depends on how a kernel walks memory:

- element by element (``vector`` is 1): a thread takes elements that lie ``threads`` apart, one number for each of four.
- several neighbours at once (``vector`` is 2, 4 or 8): a thread takes ``vector`` elements, then those that lie
  ``threads * vector`` further; the first of four numbers is the first element's.

Numbers are in (0, 1], as the vendor's library makes them: ``x / 2**32 + 2**-33`` in float32.
"""

from __future__ import annotations

import torch

_ROUND = (0xD2511F53, 0xCD9E8D57)
_KEY = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW = 0xFFFFFFFF


def uniform(
    seed: torch.Tensor, offset: torch.Tensor, position: torch.Tensor, threads: torch.Tensor, vector: torch.Tensor
) -> torch.Tensor:
    """The number of an element.

    Args:
        seed, offset: of torch's generator; an offset is a multiple of four.
        position: of the element in memory.
        threads: of the kernel.
        vector: elements that a thread takes at once.
    """
    step, inside = position // vector, position % vector
    thread, turn = step % threads, step // threads
    alone = vector == 1
    block = torch.where(alone, turn // 4, turn * ((vector + 3) // 4) + inside // 4)
    lane = torch.where(alone, turn % 4, inside % 4)
    counter = offset // 4 + block
    words = _philox(seed, [counter & _LOW, (counter >> 32) & _LOW, thread, torch.zeros_like(thread)])
    bits = torch.stack(torch.broadcast_tensors(*words)).gather(0, torch.broadcast_to(lane, words[0].shape)[None])[0]
    return bits.to(torch.float32) * 2.0**-32 + 2.0**-33


def _philox(seed: torch.Tensor, counter: list[torch.Tensor]) -> list[torch.Tensor]:
    """Four 32-bit words, held in 64 bits."""
    first, second, third, fourth = torch.broadcast_tensors(*counter, seed)[:4]
    keys = [seed & _LOW, (seed >> 32) & _LOW]
    for _ in range(_ROUNDS):
        # Products have 64 bits; that the highest of them is a sign here does not matter to their halves.
        one, other = first * _ROUND[0], third * _ROUND[1]
        high_one, high_other = (one >> 32) & _LOW, (other >> 32) & _LOW
        first, second = high_other ^ second ^ keys[0], other & _LOW
        third, fourth = high_one ^ fourth ^ keys[1], one & _LOW
        keys = [(key + step) & _LOW for key, step in zip(keys, _KEY, strict=True)]
    return [first, second, third, fourth]
