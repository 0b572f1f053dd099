"""Random groups: whatever is decided, the kernel computes what the stages do, in no order that matters."""

from __future__ import annotations

import itertools
import random

import pytest
from built_kernels import build
from drawn_graphs import Drawing, add, exp, size

from mixbackend.backends.codegen.ir.scalar import apply

SYMBOL = size("s0")
KINDS = ("sum", "max", "min")


def laid_out(generator: random.Random, sizes):
    """Dense strides in a random order of dimensions."""
    order = generator.choice(list(itertools.permutations(range(len(sizes)))))
    strides, step = [0] * len(sizes), 1
    for place in reversed(order):
        strides[place], step = step, step * sizes[place]
    return tuple(strides)


class RandomGroup:
    """Maps over all three dimensions and folds over the last or the last two; the first dimension is shared."""

    def __init__(self, seed: int) -> None:
        self.generator = random.Random(seed)
        choose = self.generator.choice
        self.symbolic = self.generator.random() < 0.4
        self.extents = (choose([1, 3, 50]), choose([1, 4, 33]), choose([2, 7, 40]))
        self.sizes = (SYMBOL if self.symbolic else self.extents[0], *self.extents[1:])
        self.draw = Drawing()
        if self.symbolic:
            self.draw.number("s0")
        self.whole = [self.draw.tensor(f"x{n}", *self.sizes, strides=self.strides()) for n in range(2)]
        self.folded: list = []
        self.outer: list[tuple[int, ...]] = []
        self.shares_second = self.generator.random() < 0.4

    def strides(self):
        """Of an input."""
        return laid_out(self.generator, self.sizes)

    def operand(self, i, j, k):
        """A read of something at a point of all three dimensions."""
        choice = self.generator.random()
        if self.folded and choice < 0.4:
            tensor = self.generator.choice(self.folded)
            return tensor.at((i, j, k)[: tensor.rank])
        tensor = self.generator.choice(self.whole)
        if tensor in self.whole[:2] and choice < 0.6:
            return tensor.at((i, self.sizes[1] - 1 - j, k))
        return tensor.at((i, j, k))

    def value(self, *index):
        """Something of two operands, sometimes expensive."""
        first, second = self.operand(*index), self.operand(*index)
        if self.generator.random() < 0.3:
            first = exp(apply("neg", first))
        return add(first, second) if self.generator.random() < 0.5 else apply("maximum", first, second)

    def stage(self, number: int) -> None:
        """Append a random stage."""
        name = f"t{number}"
        both = (0, 1) if self.shares_second else (0,)
        if self.generator.random() < 0.5:
            self.whole.append(self.draw.pointwise(name, self.sizes, self.value))
            self.outer.append(both)
            return
        kept = 2 if self.shares_second or self.generator.random() < 0.5 else 1
        kind = self.generator.choice(KINDS)
        self.folded.append(self.draw.fold(name, self.sizes[:kept], self.sizes[kept:], self.value, kind))
        self.outer.append(both[:kept])

    def build(self) -> None:
        """Draw, build, compare."""
        names = [f"t{number}" for number in range(self.generator.randint(1, 5))]
        for number, _ in enumerate(names):
            self.stage(number)
        leaving = [name for name in names[:-1] if self.generator.random() < 0.3]
        for name in (*leaving, names[-1]):
            self.draw.output(name, laid_out(self.generator, self.draw.types[name].sizes))
        symbols = {SYMBOL: self.extents[0]} if self.symbolic else {}
        width = self.generator.choice([1, 16])
        build(self.draw.graph(), self.outer, symbols, width=width, vector_bytes=self.generator.choice([16, 64]))


@pytest.mark.sampled(11)
@pytest.mark.parametrize("seed", range(24))
def test_random_group(seed):
    RandomGroup(seed).build()
