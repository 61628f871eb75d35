"""Masks that are wrong in one way each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from polyattn import _mask_tree as tree
from polyattn.mask import Mask
from polyattn.testing import MaskSubject, mask_checks
from polyattn.testing.planned import Check


def checks_of_planted(masks: type[Mask]) -> Iterable[Check]:
    """The checks of one of the classes below."""
    return mask_checks(MaskSubject(masks.__name__, masks))


class Own(Mask):
    """Right: a mask of a class of its own, which all that it gives belongs to as well."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        pytree.register_pytree_node(
            cls, tree.flatten, lambda tensors, context: cls(**tree.fields(tensors, context))
        )

    def same(self, mask: Mask, **changes: Any) -> Mask:
        """This class's mask of these fields."""
        held = {field.name: getattr(mask, field.name) for field in dataclasses.fields(Mask)}
        return type(self)(**{**held, **changes})

    def __and__(self, other: object) -> Mask:
        joined = super().__and__(other)
        return self.same(joined) if isinstance(joined, Mask) else joined

    def only(self, *parts: str) -> Mask:
        return self.same(super().only(*parts))

    def without(self, *parts: str) -> Mask:
        return self.same(super().without(*parts))


class Right(Own):
    """Right, and registered as its subclasses are."""


class AlignsWithTheFirstKeys(Own):
    def keep(self, queries: int, keys: int, *args: Any, **kwargs: Any) -> Tensor | None:
        keep = super().keep(queries, keys, *args, **kwargs)
        if keep is None or self.prefix is None or self.parts != {"causal"}:
            return keep
        return torch.ones(queries, keys, dtype=torch.bool).tril()[None, None]


class WindowOneWider(Own):
    @classmethod
    def window(cls, left: int | None, right: int | None) -> Mask:
        return super().window(None if left is None else left + 1, right)


class TrueHides(Own):
    @classmethod
    def padding(cls, keep: Tensor) -> Mask:
        return super().padding(~keep)


class RowsBeforeDense(Own):
    """A row counts as seeing by what the other parts leave it."""

    def visible_rows(self, *args: Any, **kwargs: Any) -> Tensor | None:
        return Mask.without(self, "dense").visible_rows(*args, **kwargs)


class SlopesAddDistance(Own):
    def logit_bias(self, *args: Any, **kwargs: Any) -> Tensor | None:
        bias = super().logit_bias(*args, **kwargs)
        return bias if bias is None or self.biases else bias.abs()


class KeepsTheFirst(Own):
    def __and__(self, other: object) -> Mask:
        joined = super().__and__(other)
        return joined if self.real is None else self.same(joined, span=self.span)


class TakesTheOtherPrefix(Own):
    def __and__(self, other: object) -> Mask:
        joined = super().__and__(other)
        assert isinstance(other, Mask)
        return self.same(joined, prefix=other.prefix)


class KeepsTheWiderWindow(Own):
    def __and__(self, other: object) -> Mask:
        joined = super().__and__(other)
        assert isinstance(other, Mask)
        if self.span is None or other.span is None:
            return joined
        sides = zip(self.span, other.span, strict=True)
        wider = tuple(None if None in side else max(side) for side in sides)  # type: ignore[type-var]
        return self.same(joined, span=wider)


class TakesTheSecondPadding(Own):
    def __and__(self, other: object) -> Mask:
        joined = super().__and__(other)
        assert isinstance(other, Mask)
        return joined if other.real is None else self.same(joined, real=other.real)


class AddsIds(Own):
    def __and__(self, other: object) -> Mask:
        joined = super().__and__(other)
        assert isinstance(other, Mask)
        if self.key_ids is None or other.key_ids is None or joined.query_ids is not None:
            return joined
        return self.same(joined, key_ids=self.key_ids + other.key_ids)


class StretchesOneSample(Own):
    def check(self, batch: int | None, *args: Any, **kwargs: Any) -> None:
        one = self.real is not None and self.real.shape[0] == 1
        super().check(1 if one else batch, *args, **kwargs)


class LeavesSizesToTorch(Own):
    def check(self, *args: Any, **kwargs: Any) -> None:
        return None


class AddsTheSlopes(Own):
    def __and__(self, other: object) -> Mask:
        if isinstance(other, Mask) and self.slopes is not None and other.slopes is not None:
            return self.same(self, slopes=self.slopes + other.slopes)
        return super().__and__(other)


class RefusesSizesOfOne(Own):
    @classmethod
    def dense(cls, keep: Tensor) -> Mask:
        if 1 in keep.shape:
            raise ValueError("expected the sizes of the call")
        return super().dense(keep)


class RepeatsSamplesForHeads(Own):
    @classmethod
    def bias(cls, values: Tensor) -> Mask:
        if values.ndim == 4 and values.shape[1] == 1 < values.shape[0]:
            repeated = values.transpose(0, 1).repeat(1, 2, 1, 1)[:, :3]
            return super().bias(repeated)
        return super().bias(values)


class ClosesInPlace(Own):
    def keep(self, *args: Any, **kwargs: Any) -> Tensor | None:
        keep = super().keep(*args, **kwargs)
        if self.real is not None and self.kept:
            self.real[:, 0] &= bool(self.real[0, 0])
        return keep


class NotFrozen(Own):
    __setattr__ = object.__setattr__


class ForgetsAPartInTo(Own):
    def to(self, device: torch.device | str) -> Mask:
        return self.same(super().to(device), slopes=None)


class LeavesBiasesBehind(Own):
    def to(self, device: torch.device | str) -> Mask:
        return self.same(super().to(device), biases=self.biases)


class OnlyForgetsPredicates(Own):
    def only(self, *parts: str) -> Mask:
        return self.same(super().only(*parts), predicates=())


class PicksRowsFromTheStart(Own):
    """Rows that are counted among the keys."""

    def rows(self, index: Tensor, queries: int, keys: int) -> Mask:
        return super().rows(index, keys if self.only("causal").parts else queries, keys)


class OverflowsInHalf(Own):
    def logit_bias(
        self,
        queries: int,
        keys: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> Tensor | None:
        bias = super().logit_bias(queries, keys, dtype=torch.float64, device=device)
        return None if bias is None else bias.to(dtype)


class LosesThePaddingOfRows(Own):
    def rows(self, index: Tensor, queries: int, keys: int) -> Mask:
        return self.same(super().rows(index, queries, keys), real=None)


RAISES = frozenset({RefusesSizesOfOne})
"""Their fault is that they raise; of all others something wrong must be seen."""

CAUGHT: tuple[tuple[type[Mask], str], ...] = (
    (AlignsWithTheFirstKeys, "check_mask_means_what_it_says"),
    (WindowOneWider, "check_mask_means_what_it_says"),
    (TrueHides, "check_mask_means_what_it_says"),
    (RowsBeforeDense, "check_mask_means_what_it_says"),
    (SlopesAddDistance, "check_mask_means_what_it_says"),
    (KeepsTheFirst, "check_mask_conjunction"),
    (TakesTheOtherPrefix, "check_mask_conjunction"),
    (KeepsTheWiderWindow, "check_mask_joins_its_kind"),
    (TakesTheSecondPadding, "check_mask_joins_its_kind"),
    (AddsIds, "check_mask_joins_its_kind"),
    (StretchesOneSample, "check_mask_conflicts_raise"),
    (LeavesSizesToTorch, "check_mask_conflicts_raise"),
    (AddsTheSlopes, "check_mask_conflicts_raise"),
    (RefusesSizesOfOne, "check_mask_broadcasts"),
    (RepeatsSamplesForHeads, "check_mask_broadcasts"),
    (ClosesInPlace, "check_mask_is_a_value"),
    (NotFrozen, "check_mask_is_a_value"),
    (ForgetsAPartInTo, "check_mask_moves_whole"),
    (LeavesBiasesBehind, "check_mask_moves_whole"),
    (OnlyForgetsPredicates, "check_mask_moves_whole"),
    (PicksRowsFromTheStart, "check_mask_lowering_never_weakens"),
    (OverflowsInHalf, "check_mask_lowering_never_weakens"),
    (LosesThePaddingOfRows, "check_mask_lowering_never_weakens"),
)
