"""Decoding states as the checks see them: started, grown by tokens, and looked at.

Written for strangers' states as well: say how one is started and grown, and
``polyattn.testing.state_checks`` gives the checks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from polyattn.capabilities import Sizes
from polyattn.mask import Mask
from polyattn.state import KeyValueState, Origin, RecurrentState, State
from polyattn.testing.tools.cases import normal

HEADS, WIDTH = 2, 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class StateSubject:
    """A kind of state.

    start: the state before the first token of so many samples.
    grow: the state after more tokens (B, 2, L, 4), whatever it makes of them; it takes only those
    that fit what it has seen: the same batch, width and dtype.
    look: what it remembers, by name, each tensor with the samples first; leaves it as it is.
    """

    name: str
    start: Callable[[int], State]
    grow: Callable[[State, Tensor], State]
    look: Callable[[State], Mapping[str, Tensor]]


def tokens(batch: int, length: int, *, seed: int, width: int = WIDTH) -> Tensor:
    """Tokens (B, 2, L, width) in float32."""
    return normal(batch, HEADS, length, width, seed=seed).float()


OWNER = "the suite"


def _origin(batch: int) -> Origin:
    sizes = Sizes(heads=HEADS, head_dim=WIDTH)
    return Origin(OWNER, batch, sizes, torch.float32, "cpu")


def key_value(reach: int | None = None, *, padded: bool = False) -> StateSubject:
    """The state of keys and values; ``padded``: each chunk's first token of sample 0 is padding."""

    def grow(state: State, new: Tensor) -> State:
        assert isinstance(state, KeyValueState)
        state.check(OWNER, new, new, new)
        keep = torch.ones(new.shape[0], new.shape[2], dtype=torch.bool)
        keep[:1, :1] = False
        mask = Mask.padding(keep) if padded else Mask.full()
        return state.append({"k": new, "v": -new}, mask, new)[2]

    def look(state: State) -> Mapping[str, Tensor]:
        """Read where it lies: asking by a further token would have it copied."""
        assert isinstance(state, KeyValueState)
        if state._buffer is None:
            return {}
        seen = state._buffer.view(*state._span)
        return seen if state._real is None else {**seen, "real": state._real}

    return StateSubject(
        name="padded" if padded else "key_value" if reach is None else "sliding",
        start=lambda batch: KeyValueState(reach=reach).made_for(_origin(batch)),
        grow=grow,
        look=look,
    )


def recurrent() -> StateSubject:
    """A running sum, as linear attention keeps one."""

    def start(batch: int) -> State:
        empty = RecurrentState(0, {"sum": torch.zeros(batch, HEADS, WIDTH)})
        return empty.made_for(_origin(batch))

    def grow(state: State, new: Tensor) -> State:
        assert isinstance(state, RecurrentState)
        state.check(OWNER, new, new, new)
        return state.advance(new.shape[2], {"sum": state.tensors["sum"] + new.sum(2)})

    def look(state: State) -> Mapping[str, Tensor]:
        assert isinstance(state, RecurrentState)
        return state.tensors

    return StateSubject(name="recurrent", start=start, grow=grow, look=look)
