"""Fake modes that are whole only once something runs in them.

Place: a part of the door; see ``contracts.torch_compat``. Input: symbols. Output: a fake mode and its environment of
symbols.
Making torch's own imports Dynamo, which takes one to two seconds. A package, or a region that a worker is sent, is a
graph with fake values that its text states: they are made and read, and nothing runs in their mode. The modes of here
have what that needs. Whatever else is asked of one (an operator runs, a guard is evaluated) takes all other attributes
from one of torch's own first. Where Dynamo is loaded, torch's own are made at once.
Invariants: a late mode answers what torch's own would, names of symbols included.
"""

from __future__ import annotations

import sys
from typing import Any

import sympy
from torch._functorch import config
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._sympy.symbol import SymT, make_symbol

_DYNAMO = "torch._dynamo"


class _Late:
    """Takes attributes that it does not have from a whole object, all at once."""

    _lacking = False
    """Whether it has not taken them yet; never true of what ``copy`` makes before it is filled."""

    def __getattr__(self, name: str) -> Any:
        if not self._lacking or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        # No lock: whichever of two threads comes first, its values stay.
        for key, value in vars(self._whole()).items():
            vars(self).setdefault(key, value)
        self._lacking = False
        return getattr(self, name)

    def _whole(self) -> Any:
        raise NotImplementedError


class LateShapeEnv(_Late, ShapeEnv):
    """A shape environment with declared symbols."""

    prefer_deferred_runtime_asserts_over_guards = False  # type: ignore[assignment]

    def __init__(self) -> None:
        self._declared: list[tuple[str, int, bool]] = []
        values: dict[sympy.Symbol, sympy.Integer] = {}
        vars(self).update(
            _lacking=True,
            unique_ids=set(),
            var_to_range={},
            backed_var_to_val=values,
            var_to_val=values,
            real_tensor_prop_unbacked_vals={},
            replacements={},
            axioms={},
            fx_node_cache={},
            should_record_events=False,
            is_recording=False,
            _translation_validation_enabled=False,
            _version_counter=0,
            _replacements_version_counter=0,
            _resimplify_floor_div_axioms=True,
        )

    def _whole(self) -> ShapeEnv:
        whole = ShapeEnv()
        for declared in self._declared:
            created_symbol(whole, *declared)
        for symbol, bounds in whole.var_to_range.items():
            self.var_to_range.setdefault(symbol, bounds)
        return whole

    def declared(self, name: str, hint: int, positive: bool) -> sympy.Symbol:
        """The symbol that ``created_symbol`` makes in a whole one."""
        self._declared.append((name, hint, positive))
        number = self._generate_unique_id(name)
        symbol: sympy.Symbol = make_symbol(SymT.SIZE, number, positive=positive or None, integer=True)
        self.backed_var_to_val[symbol] = sympy.Integer(hint)
        return symbol


class LateFakeMode(_Late, FakeTensorMode):
    """A fake mode with such a shape environment."""

    def __init__(self) -> None:
        vars(self).update(
            _lacking=True,
            shape_env=LateShapeEnv(),
            allow_meta=config.fake_tensor_allow_meta,
            _allow_unsafe_data_ptr_access=config.fake_tensor_allow_unsafe_data_ptr_access,
        )

    def _whole(self) -> FakeTensorMode:
        return whole_fake_mode(self.shape_env)


def whole_fake_mode(shape_env: Any) -> FakeTensorMode:
    """Torch's own."""
    return FakeTensorMode(shape_env=shape_env, allow_non_fake_inputs=True)


def fresh_fake_mode() -> Any:
    """A fake-tensor mode with symbols of its own: what is asked of them adds no guard to another graph."""
    return whole_fake_mode(ShapeEnv()) if _DYNAMO in sys.modules else LateFakeMode()


def created_symbol(shape_env: ShapeEnv, name: str, hint: int, positive: bool) -> sympy.Symbol:
    """A new symbol of a shape environment with a value in the captured run."""
    if isinstance(shape_env, LateShapeEnv) and shape_env._lacking:
        return shape_env.declared(name, hint, positive)
    from torch._dynamo.source import ConstantSource

    made: sympy.Symbol = shape_env.create_symbol(  # type: ignore[assignment]
        hint,
        ConstantSource(name),
        DimDynamic.DYNAMIC,
        positive=True if positive else None,
        do_not_specialize_zero_one=True,
    )
    return made
