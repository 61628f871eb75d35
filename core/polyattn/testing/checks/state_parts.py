"""F. States themselves: what they count and hold, and that they are values."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from polyattn.state import State
from polyattn.testing.checks.states import MODES
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.sequence import blaming
from polyattn.testing.subjects.states import WIDTH, StateSubject, tokens
from polyattn.testing.tools.numerics import compare
from polyattn.testing.tools.raising import need_value_error

BATCH = 3
CHUNKS = (3, 1, 4, 1, 1)
"""Tokens at a time: enough for a buffer to be filled, and for a window to slide."""

MANY = (9, 1, 17, 1, 1, 1)
"""Beyond what a first buffer holds."""


def _grown(subject: StateSubject, chunks: tuple[int, ...], *, seed: int = 0) -> State:
    state = subject.start(BATCH)
    for n, length in enumerate(chunks):
        state = subject.grow(state, _chunk(length, n, seed))
    return state


def _chunk(length: int, number: int, seed: int) -> Tensor:
    new = tokens(BATCH, length, seed=100 * seed + number)
    return new.requires_grad_() if torch.is_grad_enabled() else new


def _seen(subject: StateSubject, state: State) -> dict[str, Tensor]:
    """What it remembers, copied: a later write must not reach it."""
    return {name: x.detach().clone() for name, x in subject.look(state).items()}


def _same(what: str, got: Mapping[str, Tensor], want: Mapping[str, Tensor], given: str) -> None:
    if got.keys() != want.keys():
        told = f"{what} remembers {sorted(got)}, expected {sorted(want)}"
        raise Mismatch(Seen(what=told, given=given))
    for name, expected in want.items():
        compare(f"{what}: {name}", got[name], expected, tolerance=0.0, given=given)


@proves(
    "A new state is empty, of length 0, and grows by the tokens it is given, padding included.",
    causes=(
        "a length that counts calls, samples or real tokens",
        "the length of what is held, where a window forgets",
    ),
)
def check_state_counts_tokens(subject: StateSubject, mode: str) -> None:
    given = f"{subject.name}, {mode}"
    with MODES[mode](), blaming(given):
        state, total = subject.start(BATCH), 0
        for number, length in enumerate((0, *CHUNKS)):
            if length:
                state = subject.grow(state, _chunk(length, number, 0))
            total += length
            if state.length != total:
                what = f"after {total} tokens the length is {state.length}"
                raise Mismatch(Seen(what=what, given=given))


@proves(
    "nbytes is the memory it holds: no less than what it remembers, no more than its tensors' "
    "storage.",
    causes=(
        "one of the tensors, or the padding, left out",
        "elements counted in place of bytes",
        "a view counted, whose whole buffer is kept alive, or a shared one counted twice",
    ),
)
def check_state_nbytes_counts_what_it_holds(
    subject: StateSubject, chunks: tuple[int, ...], mode: str
) -> None:
    given = f"{subject.name}, chunks {chunks}, {mode}"
    with MODES[mode](), blaming(given):
        state = _grown(subject, chunks) if chunks else subject.start(BATCH)
        held = state.nbytes
        least = sum(x.numel() * x.element_size() for x in subject.look(state).values())
        storages = {x.untyped_storage().data_ptr(): x.untyped_storage() for x in _reached(state)}
        most = sum(storage.nbytes() for storage in storages.values())
    if not isinstance(held, int) or not least <= held <= most:
        what = f"nbytes is {held!r}, expected from {least} (remembered) to {most} (its storage)"
        raise Mismatch(Seen(what=what, given=given))


def _reached(value: object, depth: int = 6) -> Iterator[Tensor]:
    """Every tensor that hangs on a value."""
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, Mapping):
        for item in value.values():
            yield from _reached(item, depth - 1)
    elif depth and isinstance(value, list | tuple):
        for item in value:
            yield from _reached(item, depth - 1)
    elif depth and dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _reached(getattr(value, field.name), depth - 1)
    elif depth and isinstance(value, State):
        yield from _reached(vars(value), depth - 1)


INDICES: dict[str, list[int]] = {
    "swapped": [2, 0, 1],
    "repeated": [2, 0, 0],
    "more": [0, 1, 1, 2, 2],
    "fewer": [1],
    "none": [],
}
"""What reorder picks out of three samples."""


@proves(
    "reorder moves every sample, to any number of them, before and after the first token; the "
    "state that was reordered stays as it was.",
    causes=(
        "one of the tensors, or the padding, that is not moved",
        "a batch size that is remembered beside the tensors",
        "a copy in place, whose second half reads what the first has written",
    ),
)
def check_state_reorder(subject: StateSubject, case: str, chunks: tuple[int, ...]) -> None:
    index = torch.tensor(INDICES[case], dtype=torch.long)
    given = f"{subject.name}, reorder({index.tolist()}) after chunks {chunks}"
    with torch.no_grad(), blaming(given):
        state = _grown(subject, chunks) if chunks else subject.start(BATCH)
        before = _seen(subject, state)
        moved = state.reorder(index)
        after = _seen(subject, moved)
        new = tokens(BATCH, 2, seed=9)
        grown = _seen(subject, subject.grow(moved, new[index]))
        want = {name: x[index] for name, x in _seen(subject, subject.grow(state, new)).items()}
    picked = {name: x[index] for name, x in before.items()}
    _same("the reordered state", after, picked, given)
    if moved.length != state.length:
        what = f"its length is {moved.length}, expected {state.length}"
        raise Mismatch(Seen(what=what, given=given))
    if index.numel():
        _same("the reordered state, two tokens later", grown, _padded_alike(want, after), given)
    _same("the state that was reordered", _seen(subject, state), before, given)


def _padded_alike(want: dict[str, Tensor], after: dict[str, Tensor]) -> dict[str, Tensor]:
    """Which token of a new chunk is padding is said of the sample in the first place."""
    if "real" not in want:
        return want
    real = want["real"].clone()
    real[:, -2:] = True
    real[:1, -2] = False
    return {**want, "real": real}


@proves(
    "Two states that grew from one know nothing of each other, and the one that they grew from is "
    "as it was: each is what its own tokens make of it.",
    causes=(
        "a buffer that both write to",
        "a step that writes into the tensors of the state it was given",
        "a list or dict that is shared and not copied",
    ),
)
def check_state_forks_are_independent(
    subject: StateSubject, chunks: tuple[int, ...], mode: str
) -> None:
    given = f"{subject.name}, grown twice after chunks {chunks}, {mode}"
    later = len(chunks)
    with MODES[mode](), blaming(given):
        root = _grown(subject, chunks)
        before, size = _seen(subject, root), (root.length, root.nbytes)
        first = subject.grow(root, _chunk(1, later, 0))
        second = subject.grow(root, _chunk(1, later, 5))
        third = subject.grow(root, _chunk(2, later, 6))
        first = subject.grow(first, _chunk(3, later + 1, 0))
        found = {name: _seen(subject, s) for name, s in (("first", first), ("third", third))}
        found["second"] = _seen(subject, subject.grow(second, _chunk(1, later + 1, 5)))
        wanted = {
            "first": _again(subject, chunks, [(1, later, 0), (3, later + 1, 0)]),
            "second": _again(subject, chunks, [(1, later, 5), (1, later + 1, 5)]),
            "third": _again(subject, chunks, [(2, later, 6)]),
        }
        root_after = _seen(subject, root)
    for name, want in wanted.items():
        _same(f"the {name} fork, against the same tokens by themselves", found[name], want, given)
    _same("the state that they grew from", root_after, before, given)
    if (root.length, root.nbytes) != size:
        raise Mismatch(Seen(what="the state that they grew from has another size", given=given))


def _again(
    subject: StateSubject, chunks: tuple[int, ...], more: list[tuple[int, int, int]]
) -> dict[str, Tensor]:
    state = _grown(subject, chunks)
    for length, number, seed in more:
        state = subject.grow(state, _chunk(length, number, seed))
    return _seen(subject, state)


MISFITS: dict[str, tuple[int, int, torch.dtype]] = {
    "one_sample": (1, WIDTH, torch.float32),
    "more_samples": (BATCH + 1, WIDTH, torch.float32),
    "width": (BATCH, WIDTH + 1, torch.float32),
    "dtype": (BATCH, WIDTH, torch.float64),
}
"""(B, width, dtype) of tokens that do not continue the state."""


@proves(
    "Tokens that do not fit what it has seen raise a ValueError that says so.",
    causes=(
        "a sum that broadcasts over a batch of one",
        "torch.cat over promoted dtypes, or a copy that converts",
    ),
)
def check_state_refuses_tokens(subject: StateSubject, case: str) -> None:
    batch, width, dtype = MISFITS[case]
    given = f"{subject.name} of {BATCH} samples of width {WIDTH} in float32, {case}"
    with torch.no_grad():
        with blaming(given):
            state = _grown(subject, CHUNKS)
        new = tokens(batch, 1, seed=3, width=width).to(dtype)
        need_value_error(lambda: subject.grow(state, new), "tokens that do not fit", given)


WRONG: dict[str, object] = {
    "floats": torch.tensor([0.0, 1.0]),
    "bools": torch.tensor([True, False, True]),
    "rank_two": torch.tensor([[0, 1]]),
    "rank_zero": torch.tensor(1),
    "beyond": torch.tensor([0, BATCH]),
    "negative": torch.tensor([0, -1]),
    "a_list": [0, 1],
    "none": None,
}
"""What is no index of samples."""


@proves(
    "An index that is none (floats, bools, another rank, beyond the samples) raises a ValueError "
    "that says what was expected.",
    causes=(
        "an index that is left to torch, whose error says nothing of samples",
        "a bool index taken for a mask, a negative one counted from the end",
    ),
)
def check_state_refuses_index(subject: StateSubject, case: str, chunks: tuple[int, ...]) -> None:
    given = f"{subject.name} of {BATCH} samples after chunks {chunks}, index {case}"
    with torch.no_grad():
        with blaming(given):
            state = _grown(subject, chunks) if chunks else subject.start(BATCH)
        wrong = WRONG[case]
        reorder = functools.partial(state.reorder, wrong)  # type: ignore[arg-type]
        need_value_error(reorder, "such an index", given)
