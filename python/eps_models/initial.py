"""Records how a model initializes its parameters, without computing a value.

A model of any size is then built on the CPU in no memory: its parameters are allocated but never
written, so the system gives them no pages. Buffers and constants have their values.
"""

import dataclasses
import math
from typing import Any, Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten


@dataclasses.dataclass(frozen=True)
class Init:
    """Initial values: `kind` is normal (mean 0, standard deviation a), uniform (from a to b), zeros
    or ones; `erfinv` while trunc_normal_ computes, and `unknown` with the operator in `by`."""
    kind: str
    a: float = 0.0
    b: float = 0.0
    by: str = ""


def _constant(value: float) -> Init:
    if value == 0:
        return Init("zeros")
    return Init("ones") if value == 1 else Init("uniform", value, value)


def _normal(mean: float = 0.0, std: float = 1.0) -> Init:
    return Init("normal", float(std)) if mean == 0 else Init("unknown", by="normal_ with a mean")


def _scaled(before: Init, factor: float) -> Init:
    if before.kind == "erfinv":  # trunc_normal_: erfinv of a uniform variable times std · √2
        return Init("normal", factor / math.sqrt(2))
    if before.kind == "normal":
        return Init("normal", abs(before.a * factor))
    if before.kind in ("ones", "uniform", "zeros"):
        ends = {"ones": (1.0, 1.0), "zeros": (0.0, 0.0)}.get(before.kind, (before.a, before.b))
        low, high = sorted(end * factor for end in ends)
        return Init("uniform", low, high) if low != high else _constant(low)
    return before


def _shifted(before: Init, offset: float) -> Init:
    return before if offset == 0 else Init("unknown", by="add_")


def _by_tensor(rule: Callable[[Init, float], Init], before: Init, other: Any) -> Init:
    """Applies a rule to a number that may be a tensor of one element."""
    if isinstance(other, torch.Tensor) and other.numel() != 1:
        return Init("unknown", by="a different factor or summand for each element")
    return rule(before, float(other))


# The rule of each operation in place: (Init before, further arguments) -> Init afterwards.
_IN_PLACE: dict[Any, Callable[..., Init]] = {
    _aten.normal_.default: lambda before, mean=0.0, std=1.0: _normal(mean, std),
    _aten.uniform_.default: lambda before, low=0.0, high=1.0: Init("uniform", low, high),
    _aten.zero_.default: lambda before: Init("zeros"),
    _aten.fill_.Scalar: lambda before, value: _constant(value),
    _aten.erfinv_.default: lambda before: Init("erfinv"),
    _aten.mul_.Scalar: _scaled,
    _aten.mul_.Tensor: lambda before, other: _by_tensor(_scaled, before, other),
    _aten.add_.Scalar: _shifted,
    _aten.add_.Tensor: lambda before, other: _by_tensor(_shifted, before, other),
    _aten.clamp_.default: lambda before, low=None, high=None: before,
}
_FACTORIES: dict[Any, Callable[..., Init]] = {
    _aten.ones.default: lambda size: Init("ones"),
    _aten.zeros.default: lambda size: Init("zeros"),
    _aten.full.default: lambda size, value: _constant(value),
    _aten.randn.default: lambda size: _normal(),
    _aten.rand.default: lambda size: Init("uniform", 0.0, 1.0),
}
# Their result has the values of their first argument if it has its shape.
_COPIES = (_aten.clone.default, _aten.constant_pad_nd.default, _aten._to_copy.default)


def _key(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _is_whole(tensor: torch.Tensor) -> bool:
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


class InitRecorder(TorchDispatchMode):
    """While active, records what initializes each storage. Operations in place on a parameter are
    recorded and not executed. Not for use from several threads."""

    def __init__(self) -> None:
        super().__init__()
        self._records: dict[int, Init] = {}

    def of(self, parameter: torch.Tensor) -> Init:
        """Returns how the parameter was initialized; kind `unknown` if nothing was recorded."""
        return self._records.get(_key(parameter), Init("unknown", by="no initialization"))

    def _write(self, func: Any, tensor: torch.Tensor, arguments: tuple, named: dict) -> bool:
        """Records one operation in place; returns whether it need not be executed."""
        rule = _IN_PLACE.get(func)
        named = {k: v for k, v in named.items() if k != "generator"}
        if rule is None:
            self._records[_key(tensor)] = Init("unknown", by=str(func))
            return False
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        if _is_whole(tensor):  # else one row of it, as that of the padding token
            self._records[_key(tensor)] = rule(self.of(tensor), *arguments, **named)
        return is_parameter

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        schema = func._schema
        if schema.is_mutable and args and isinstance(args[0], torch.Tensor):
            if args[0].is_floating_point() and self._write(func, args[0], args[1:], kwargs):
                return args[0]
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        is_new = isinstance(result, torch.Tensor) and not any(r.alias_info for r in schema.returns)
        if is_new and result.is_floating_point():
            # The storage may have the address of one that was freed.
            self._records.pop(_key(result), None)
            if func in _FACTORIES:
                self._records[_key(result)] = _FACTORIES[func](*args)
            elif func in _COPIES and result.shape == args[0].shape:
                self._records[_key(result)] = self.of(args[0])
        return result
