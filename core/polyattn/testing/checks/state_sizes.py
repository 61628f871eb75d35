"""F. Decoding: a window's keys leave its state in time, and what a state holds stays bounded."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from polyattn.mask import Mask
from polyattn.state import State
from polyattn.testing.checks.decoding import decode
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.sequence import Instance, Subject, blaming
from polyattn.testing.tools.cases import SQUARE, Sample, Shape, shape_of
from polyattn.testing.tools.compare import output_tolerance
from polyattn.testing.tools.numerics import compare


def cuts(window: int) -> dict[str, int]:
    """Lengths of chunks that fall before, on and behind the edge of a window of so many keys."""
    chosen = {
        "token": 1,
        "one_less": window - 1,
        "window": window,
        "one_more": window + 1,
        "part": window // 2 + 1,
        "two_windows": 2 * window + 1,
    }
    lengths: dict[int, str] = {}
    for name, length in chosen.items():
        if length > 0:
            lengths.setdefault(length, name)
    return {name: length for length, name in lengths.items()}


@proves(
    "Over three windows, decoded in chunks of any length, each query sees its window and no more.",
    causes=(
        "a ring buffer that a long chunk overwrites before it is read",
        "a state of W keys where W - 1 before the newest are seen, or W + 1",
        "the mask built for the sequence where the state holds the window",
    ),
    claim="state",
)
def check_window_cache_eviction(subject: Subject, window: int, chunk: int, by: str) -> None:
    """window: the query's own key and those before it. by: ``mask`` or ``options``."""
    total = 3 * window + 2
    shape = subject.fit(Shape(name="", queries=total, keys=total))
    asked = Mask.causal() & (Mask.window(window - 1, 0) if by == "mask" else Mask.full())
    sample, instance = subject.draw(shape).masked(asked), subject.at(shape)
    with torch.no_grad():
        compare(
            "the output of decoding, against one call",
            decode(instance, sample, (chunk,)),
            instance(sample),
            tolerance=output_tolerance(sample),
            given=f"{sample.describe()}, a window of {window} keys, chunks of {chunk}",
        )


@proves(
    "A sliding state holds at most twice its window, a recurrent one always the same; nbytes "
    "counts all that is held.",
    causes=(
        "keys that are sliced off, but keep the whole buffer alive: copy what is left",
        "a state that only grows, whose old keys are masked",
        "nbytes that counts what is seen, and not the buffer it lies in",
    ),
    claim="state",
)
def check_state_size(subject: Subject, mode: str) -> None:
    """mode: ``no_grad`` or ``gradients``, whose states are made otherwise."""
    window = subject.promised_window
    reach = 16 if window is None else max(1, window[0])
    shape = subject.fit(SQUARE.of(queries=reach, keys=reach))
    sample, instance = subject.draw(shape).masked(Mask.full()), subject.at(shape)
    with torch.set_grad_enabled(mode == "gradients"):
        early = _after(instance, sample, 4)
        late = _after(instance, sample, 24)
    kind, given = subject.capabilities.state, f"{sample.describe()}, 4 and 24 times, {mode}"
    for state in (early, late):
        held = _held(state)
        if state.nbytes < held:
            what = f"nbytes is {state.nbytes} after {state.length} tokens, and {held} are held"
            raise Mismatch(Seen(what=what, given=given))
    most = early.nbytes if kind == "recurrent" else 2 * early.nbytes
    if kind == "sliding" and window is not None:
        # A padding or segment ids may be kept beside each key.
        token = sum(x[:, :, :1].nbytes for n, x in sample.leaves().items() if n != "q")
        most = 2 * (window[0] + 1) * token
    if kind != "key_value" and late.nbytes > most:
        what = (
            f"a {kind} state holds {late.nbytes} bytes after {late.length} tokens, expected at "
            f"most {most}"
        )
        raise Mismatch(Seen(what=what, given=given))


def _after(instance: Instance, sample: Sample, times: int) -> State:
    """The state after the sample has been given so often, and a token by itself each time."""
    with blaming(sample.describe()):
        state = instance.new_state(sample.q.shape[0], shape_of(sample).sizes, sample.dtype)
        for _ in range(times):
            _, state = instance.extend(sample, state)
            _, state = instance.extend(sample.positions(slice(0, 1)), state)
    return state


def _held(state: State) -> int:
    """The bytes of the memory that a state keeps alive, each counted once."""
    found = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in _tensors(state)}
    return sum(found.values())


def _tensors(value: object, depth: int = 0) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif depth > 8:
        return
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from _tensors(entry, depth + 1)
    elif isinstance(value, list | tuple | set | frozenset):
        for entry in value:
            yield from _tensors(entry, depth + 1)
    elif isinstance(value, State) or dataclasses.is_dataclass(value):
        yield from _tensors(getattr(value, "__dict__", {}), depth + 1)
