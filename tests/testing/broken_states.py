"""A state as a stranger would write one, and states that are wrong in one way each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Self

import torch
from torch import Tensor

from polyattn.errors import ShapeError
from polyattn.state import State, pick_samples
from polyattn.testing import StateSubject, state_checks
from polyattn.testing.planned import Check


def checks_of_planted(kind: type[Sums]) -> Iterable[Check]:
    """The checks of one of the classes below."""

    def grow(state: State, new: Tensor) -> State:
        assert isinstance(state, kind)
        return state.grown(new)

    def look(state: State) -> Mapping[str, Tensor]:
        assert isinstance(state, kind)
        return {"total": state.total, "recent": state.recent}

    return state_checks(StateSubject(name="sums", start=kind.begin, grow=grow, look=look))


@dataclasses.dataclass(frozen=True, eq=False)
class Sums(State):
    """Right: the sum of all tokens, (B, 2, 4), and the last three of them, (B, 2, 3, 4)."""

    length: int
    total: Tensor
    recent: Tensor

    @classmethod
    def begin(cls, batch: int) -> Self:
        return cls(0, torch.zeros(batch, 2, 4), torch.zeros(batch, 2, 0, 4))

    @property
    def nbytes(self) -> int:
        return self.total.nbytes + self.recent.nbytes

    def reorder(self, index: Tensor) -> Self:
        picked = (pick_samples(x, index) for x in (self.total, self.recent))
        return type(self)(self.length, *picked)

    def grown(self, new: Tensor) -> Self:
        held = self.recent
        if new.shape[0] != held.shape[0] or new.shape[3] != 4 or new.dtype != held.dtype:
            raise ShapeError(f"expected tokens like {tuple(held.shape)}, got {tuple(new.shape)}")
        return self.having(self.total + new.sum(2), torch.cat([held, new], 2), new.shape[2])

    def having(self, total: Tensor, recent: Tensor, tokens: int) -> Self:
        return type(self)(self.length + tokens, total, recent[:, :, -3:].clone())


class CountsCalls(Sums):
    def having(self, total: Tensor, recent: Tensor, tokens: int) -> Self:
        return super().having(total, recent, 1)


class CountsWhatItHolds(Sums):
    def having(self, total: Tensor, recent: Tensor, tokens: int) -> Self:
        return type(self)(min(recent.shape[2], 3), total, recent[:, :, -3:].clone())


class CountsElements(Sums):
    @property
    def nbytes(self) -> int:
        return self.total.numel() + self.recent.numel()


class CountsOneTensor(Sums):
    @property
    def nbytes(self) -> int:
        return self.total.nbytes


class CountsTwice(Sums):
    @property
    def nbytes(self) -> int:
        return 2 * super().nbytes


class ReordersTheSumAlone(Sums):
    def reorder(self, index: Tensor) -> Self:
        kept = self.recent[: index.shape[0]]
        return type(self)(self.length, pick_samples(self.total, index), kept)


class ForgetsItsLengthInReorder(Sums):
    def reorder(self, index: Tensor) -> Self:
        moved = super().reorder(index)
        return type(self)(moved.recent.shape[2], moved.total, moved.recent)


class AddsInPlace(Sums):
    def grown(self, new: Tensor) -> Self:
        grown = super().grown(new)
        with torch.no_grad():
            self.total.copy_(grown.total)
        return grown


class WritesOn(Sums):
    """The tokens come into memory that an older state reads as well."""

    def having(self, total: Tensor, recent: Tensor, tokens: int) -> Self:
        if self.recent.shape[2] == 3:
            with torch.no_grad():
                self.recent.copy_(recent[:, :, -3:])
            return type(self)(self.length + tokens, total, self.recent)
        return super().having(total, recent, tokens)


class TakesAnyTokens(Sums):
    """A sum broadcasts over a batch of one."""

    def grown(self, new: Tensor) -> Self:
        new = new.to(self.total.dtype).expand(self.total.shape[0], -1, -1, -1)
        return self.having(self.total + new.sum(2), torch.cat([self.recent, new], 2), new.shape[2])


class LeavesTokensToTorch(Sums):
    def grown(self, new: Tensor) -> Self:
        return self.having(self.total + new.sum(2), torch.cat([self.recent, new], 2), new.shape[2])


class IndexesByBrackets(Sums):
    """A bool index is a mask, and a negative one counts from the end."""

    def reorder(self, index: Tensor) -> Self:
        return type(self)(self.length, self.total[index], self.recent[index])


class LeavesTheIndexToTorch(Sums):
    def reorder(self, index: Tensor) -> Self:
        picked = (x.index_select(0, index) for x in (self.total, self.recent))
        return type(self)(self.length, *picked)


CAUGHT: tuple[tuple[type[Sums], str], ...] = (
    (CountsCalls, "check_state_counts_tokens"),
    (CountsWhatItHolds, "check_state_counts_tokens"),
    (CountsElements, "check_state_nbytes_counts_what_it_holds"),
    (CountsOneTensor, "check_state_nbytes_counts_what_it_holds"),
    (CountsTwice, "check_state_nbytes_counts_what_it_holds"),
    (ReordersTheSumAlone, "check_state_reorder"),
    (ForgetsItsLengthInReorder, "check_state_reorder"),
    (AddsInPlace, "check_state_forks_are_independent"),
    (WritesOn, "check_state_forks_are_independent"),
    (TakesAnyTokens, "check_state_refuses_tokens"),
    (LeavesTokensToTorch, "check_state_refuses_tokens"),
    (IndexesByBrackets, "check_state_refuses_index"),
    (LeavesTheIndexToTorch, "check_state_refuses_index"),
)
