"""Random graphs: groups keep their promises, and programs made of them compute what the stages do."""

from __future__ import annotations

import torch
from drawn_graphs import Drawing, add, cpu_traits, random_inputs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiers import draws

from mixbackend.backends.codegen.interpret.program import interpret_program
from mixbackend.backends.codegen.interpret.stages import interpret_stages
from mixbackend.backends.codegen.ir.indices import flatten, unflatten
from mixbackend.backends.codegen.ir.scalar import Constant, apply
from mixbackend.backends.codegen.schedule.check_groups import check_groups
from mixbackend.backends.codegen.schedule.grouping import choose_layouts, group_stages
from mixbackend.backends.codegen.schedule.schedule import schedule
from mixbackend.backends.codegen.schedule.split_loops import split_loops

SHAPES = ((4, 6), (6, 4), (4, 6, 2), (24,), (4,), (6,), (2, 6, 4), (4, 2, 3, 2))
KINDS = ("map", "reduce", "scan", "concatenate", "scatter", "reshape", "transpose")


class RandomGraph:
    """Draws stages over what is there already; values stay small whole numbers, so that sums are exact."""

    def __init__(self, data, large):
        self.data = data
        self.factor = 64 if large else 1
        self.drawing = Drawing()
        self.tensors = [self.drawing.tensor("x", *self.sizes(SHAPES[0])), self.drawing.tensor("y", *self.sizes((6,)))]

    def sizes(self, shape):
        return (shape[0] * self.factor, *shape[1:])

    def pick(self, options):
        return self.data.draw(st.sampled_from(options))

    def stage(self, number):
        source = self.pick(self.tensors)
        kind = self.pick(KINDS) if source.rank else "map"
        made = getattr(self, kind)(f"t{number}", source)
        self.tensors.append(made)

    def other(self, source, index):
        """A value of another tensor whose dimensions fit some of the source's, in any order."""
        dimensions = list(range(source.rank))
        for tensor in self.data.draw(st.permutations(self.tensors)):
            chosen = []
            for size in tensor.sizes:
                fitting = [place for place in dimensions if source.sizes[place] == size and place not in chosen]
                chosen.append(self.pick(fitting) if fitting else None)
            if None not in chosen:
                return tensor.at(tuple(index[place] for place in chosen))
        return source.at(index)

    def bounded(self, value):
        return apply("remainder", value, self.constant(5.0))

    def constant(self, value):
        return Constant(torch.float32, value)

    def map(self, name, source):
        order = self.data.draw(st.permutations(range(source.rank)))
        sizes = [source.sizes[place] for place in order]

        def value(*index):
            back = [index[order.index(place)] for place in range(source.rank)]
            return self.bounded(add(source.at(tuple(back)), self.other(source, tuple(back))))

        return self.drawing.pointwise(name, sizes, value)

    def transpose(self, name, source):
        return self.drawing.pointwise(
            name, tuple(reversed(source.sizes)), lambda *index: source.at(tuple(reversed(index)))
        )

    def reshape(self, name, source):
        total = 1
        for size in source.sizes:
            total *= int(size)
        fitting = [shape for shape in SHAPES if torch.Size(self.sizes(shape)).numel() == total]
        shape = self.sizes(self.pick(fitting)) if fitting else source.sizes

        def value(*index):
            return source.at(unflatten(flatten(index, shape), source.sizes, self.drawing.ranges))

        return self.drawing.pointwise(name, shape, value)

    def reduce(self, name, source):
        kept = sorted(self.data.draw(st.sets(st.integers(0, source.rank - 1), max_size=source.rank - 1)))
        folded = [place for place in range(source.rank) if place not in kept]

        def value(*index):
            whole = dict(zip([*kept, *folded], index, strict=True))
            return source.at(tuple(whole[place] for place in range(source.rank)))

        kind = self.pick(["sum", "max"])
        made = self.drawing.fold(
            f"{name}.total", [source.sizes[p] for p in kept], [source.sizes[p] for p in folded], value, kind
        )
        return self.drawing.pointwise(name, made.sizes, lambda *index: self.bounded(made.at(index)))

    def scan(self, name, source):
        axis = self.pick(range(source.rank))
        made = self.drawing.called(f"{name}.sums").scan("sum", source.sizes, axis, source.at, torch.float32)
        return self.drawing.pointwise(name, made.sizes, lambda *index: self.bounded(made.at(index)))

    def concatenate(self, name, source):
        axis = self.pick(range(source.rank))
        part = source.sizes[axis]
        sizes = tuple(2 * part if place == axis else size for place, size in enumerate(source.sizes))
        flipped = lambda index: source.at(tuple(part - 1 - item if p == axis else item for p, item in enumerate(index)))  # noqa: E731
        return self.drawing.called(name).concatenate(sizes, axis, [(part, source.at), (part, flipped)], torch.float32)

    def scatter(self, name, source):
        axis = self.pick(range(source.rank))
        limit = source.sizes[axis]
        symbol = self.drawing.bound_symbol(limit)

        def destination(index):
            place = apply("remainder", source.at(index), self.constant(float(limit)))
            row = apply("to_dtype", place, dtype=torch.int64)
            return tuple(symbol if p == axis else item for p, item in enumerate(index)), ((symbol, row),)

        made = self.drawing.called(f"{name}.sums").scatter(
            source.sizes, torch.float32, source.at, source.sizes, destination, source.at, mode="add"
        )
        return self.drawing.pointwise(name, made.sizes, lambda *index: self.bounded(made.at(index)))

    def graph(self):
        count = self.data.draw(st.integers(1, 7))
        for number in range(count):
            self.stage(number)
        outputs = self.data.draw(st.sets(st.integers(0, count - 1), min_size=1))
        return self.drawing.graph(*(f"t{number}" for number in sorted(outputs | {count - 1})))


@settings(max_examples=draws(42, 120), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), st.booleans(), st.sampled_from([0, 2, None]), st.sampled_from([256, 1 << 18]))
def test_groups_keep_their_promises(data, large, fuel, scratch):
    graph = split_loops(RandomGraph(data, large).graph())
    traits = cpu_traits(scratch_bytes=scratch)
    groups, _ = group_stages(graph, choose_layouts(graph), traits, fuel)
    check_groups(graph, groups)
    if fuel == 0:
        assert len(groups) == len(graph.stages)
    assert (groups, _) == group_stages(graph, choose_layouts(graph), traits, fuel)


@settings(max_examples=draws(14, 40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), st.sampled_from([0, 1, 3, None]), st.sampled_from([1, 16]))
def test_programs_compute_what_stages_do(data, fuel, width):
    graph = RandomGraph(data, large=False).graph()
    program = schedule(graph, cpu_traits(parallel_width=width), fuel=fuel)
    inputs = random_inputs(graph)
    for one, other in zip(interpret_stages(graph, inputs), interpret_program(program, inputs), strict=True):
        assert (one.shape, one.stride()) == (other.shape, other.stride())
        torch.testing.assert_close(one, other, rtol=0, atol=0)
