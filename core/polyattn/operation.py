"""Operations: one meaning, several implementations, the choice and its reasons.

Members have no parameters and share the operation's one Config. The first member without refusals
answers; specialists come first, each refusing what it is not made for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor, nn

from polyattn.admission import Admission, Asked, Inputs
from polyattn.capabilities import Call, Capabilities, Lengths, Refusal, Sizes, Support
from polyattn.checked import check_tensors
from polyattn.contract import SequenceAttention
from polyattn.errors import Unavailable, Unsupported
from polyattn.mask import Mask
from polyattn.options import Options

__all__ = ["Choice", "Operation"]


@dataclass(frozen=True)
class Choice:
    """Who answers a call, and why those asked before did not."""

    name: str
    member: SequenceAttention
    passed_over: tuple[tuple[str, tuple[Refusal, ...]], ...]


class Operation(SequenceAttention):
    """A meaning asked for by name; each call is answered by the first member that takes it.

    members: by name, in the order in which they are asked. unusable: why others are not among
    them. Raises: Unavailable without any member.
    """

    members: nn.ModuleList

    def __init__(
        self,
        name: str,
        members: Mapping[str, SequenceAttention],
        config: Options,
        sizes: Sizes | None = None,
        unusable: Mapping[str, str] | None = None,
    ) -> None:
        Admission.__init__(self)
        self.unusable = dict(unusable or {})
        for member_name, member in members.items():
            if next(member.parameters(), None) is not None:
                self.unusable[member_name] = "has parameters; register it as a variant of its own"
        members = {n: member for n, member in members.items() if n not in self.unusable}
        if not members:
            told = "; ".join(f"{n}: {why}" for n, why in self.unusable.items()) or "none known"
            raise Unavailable(f"operation {name!r} has no usable member: {told}")
        self.name = name
        self.config = config
        self.sizes = sizes
        self._owner = f"{name}({config})"
        self._scale = getattr(config, "scale", None)
        self._dropout = getattr(config, "dropout", 0.0)
        self.names = tuple(members)
        self.members = nn.ModuleList(members.values())
        self.claims = reduce(_either, (member.claims for member in members.values()))
        refusals = self.refusals(Call(sizes=sizes, dropout=self._dropout))
        if refusals:
            raise Unsupported(self.label, refusals)

    @property
    def label(self) -> str:
        return self.name

    def choose(self, call: Call) -> Choice:
        """The member that answers ``call``, with the reasons of those passed over.

        Raises: Unsupported, with every member's reasons, where nobody does.
        """
        passed: list[tuple[str, tuple[Refusal, ...]]] = [
            (name, (Refusal("member", "unusable", "members that can be built", why),))
            for name, why in self.unusable.items()
        ]
        for name, member in self._ordered():
            refusals = member.refusals(call)
            if not refusals:
                return Choice(name, member, tuple(passed))
            passed.append((name, refusals))
        raise Unsupported(self.label, _told_apart(passed))

    def candidates(self, call: Call) -> tuple[Admission, ...]:
        willing = tuple(member for _, member in self._ordered() if not member.refusals(call))
        if not willing:
            raise Unsupported(self.label, self.refusals(call))
        return willing

    def refusals(self, call: Call) -> tuple[Refusal, ...]:
        """Empty if any member answers; else what every member says."""
        found = []
        for name, member in self._ordered():
            refusals = member.refusals(call)
            if not refusals:
                return ()
            found.append((name, refusals))
        return tuple(_told_apart(found))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        return self._choose(Asked(q, k, v, mask, inputs, check_tensors(q, k, v))).attend(
            q, k, v, mask, inputs
        )

    def reference(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: Inputs) -> Tensor:
        return self._choose(Asked(q, k, v, mask, inputs, check_tensors(q, k, v))).reference(
            q, k, v, mask, inputs
        )

    def extra_repr(self) -> str:
        return f"{self.name}: {self.config!r}"

    def _ordered(self) -> Iterable[tuple[str, SequenceAttention]]:
        for name, member in zip(self.names, self.members, strict=True):
            assert isinstance(member, SequenceAttention)
            yield name, member


def _told_apart(found: Iterable[tuple[str, tuple[Refusal, ...]]]) -> list[Refusal]:
    return [
        replace(refusal, option=f"{name}: {refusal.option}")
        for name, refusals in found
        for refusal in refusals
    ]


def _either(a: Capabilities, b: Capabilities) -> Capabilities:
    """What two members take between them, and which properties both have."""
    order = ("no", "fixed", "dynamic")
    return Capabilities(
        masks=a.masks | b.masks,
        requires=a.requires & b.requires,
        unequal_lengths=a.unequal_lengths or b.unequal_lengths,
        grouped_heads="no" if a.grouped_heads == b.grouped_heads == "no" else "repeated",
        value_width=a.value_width or b.value_width,
        dropout=a.dropout or b.dropout,
        state="key_value",
        lengths=a.lengths if a.lengths == b.lengths else Lengths(),
        devices=_either_devices(a.devices, b.devices),
        exactness=a.exactness if a.exactness == b.exactness else "approximate",
        limit=a.limit if a.limit == b.limit else "",
        linear_memory=a.linear_memory and b.linear_memory,
        rows_sum_to_one=a.rows_sum_to_one and b.rows_sum_to_one,
        linear_in_values=a.linear_in_values and b.linear_in_values,
        key_order_invariant=a.key_order_invariant and b.key_order_invariant,
        nan_blind=a.nan_blind and b.nan_blind,
        compiles=min(a.compiles, b.compiles, key=order.index),
        exports=min(a.exports, b.exports, key=order.index),
    )


def _either_devices(a: Mapping[str, Support], b: Mapping[str, Support]) -> Mapping[str, Support]:
    nothing = Support(dtypes=set[torch.dtype](), backward=False)
    return {
        place: Support(
            dtypes=a.get(place, nothing).dtypes | b.get(place, nothing).dtypes,
            backward=a.get(place, nothing).backward or b.get(place, nothing).backward,
            # Whoever answers must have these: a call does not say that it will need them.
            double_backward=all(m[place].double_backward for m in (a, b) if place in m),
            forward_ad=a.get(place, nothing).forward_ad or b.get(place, nothing).forward_ad,
        )
        for place in {**a, **b}
    }
