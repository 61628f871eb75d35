"""The door of transformers' attention functions, checked as they are; transformers is not needed.

``f(module, q (B, H, L, D), k, v, attention_mask, scaling=, dropout=, **kwargs)`` gives
``(out (B, L, H, D), weights or None)``. It is called as transformers calls it and read as a
function of (q, k, v), so that all checks of sequences apply; what is transformers' own (its
decoding step, its windows, scales and weights) is checked beside them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from polyattn.testing.checks.transformers_functions import (
    check_hf_decoding_step,
    check_hf_dropout,
    check_hf_module_untouched,
    check_hf_output,
    check_hf_scaling,
    check_hf_sliding_window,
    check_hf_weights,
)
from polyattn.testing.doors.causes import KnownFailure
from polyattn.testing.doors.hf_functions import (
    HfFunction,
    LayerConfig,
    StandIn,
    heads_first,
    stand_in,
)
from polyattn.testing.doors.mask_causes import CLOSE
from polyattn.testing.doors.network import finding, in_words_of_a_door
from polyattn.testing.doors.probe import keywords_of
from polyattn.testing.doors.sdpa import Door, Wishes, door_of
from polyattn.testing.planned import Check, planned
from polyattn.testing.process.contained import TimeUp, contained, first_line, limited, words_of
from polyattn.testing.process.settings import settings_restored
from polyattn.testing.results import Result
from polyattn.testing.tools.cases import normal
from polyattn.testing.tools.numerics import unfit

EMPTY_ROWS = (
    "rows without any key are judged with finfo.min, as transformers writes them: what rows closed "
    "by -inf give is not looked at"
)


@dataclasses.dataclass(frozen=True)
class HfDoor:
    """An opened door: what it is as a function of (q, k, v), and what is transformers' own."""

    door: Door
    findings: tuple[Check, ...]
    notes: tuple[str, ...]
    function: HfFunction | None

    @property
    def subject(self) -> object:
        """None where it answers no plain call."""
        return self.door.subject

    def checks(self) -> Iterator[Check]:
        """The findings, those of sequences too, what is transformers' own, then the checks."""
        yield from self.findings
        known = {found.id for found in self.door.findings}
        yield from map(_as_transformers_masks, self.door.findings)
        if self.function is not None and self.door.subject is not None:
            for check in (
                check_hf_output,
                check_hf_module_untouched,
                check_hf_scaling,
                check_hf_decoding_step,
                check_hf_sliding_window,
                check_hf_weights,
                check_hf_dropout,
            ):
                if not any(found.id.startswith(check.__name__) for found in self.findings):
                    yield in_words_of_a_door(planned(check, "", self.function))
        yield from (other for other in self.door.checks() if other.id not in known)

    def follows(self, check: Check) -> str:
        """The id of the finding from which a failure of this check follows."""
        return self.door.follows(check)

    def verdict(self, results: Sequence[Result]) -> str:
        """What it is, in one line, and what of transformers' own fails."""
        mine = [x.name for x in results if x.name.startswith("check_hf") and not x.status.good]
        others = [x for x in results if not x.name.startswith("check_hf")]
        if self.function is None:
            return self.door.verdict(results)
        told = self.door.verdict(others)
        if left := untried(self.function.function):
            told += f"; not tried: {', '.join(left)}"
        if not mine:
            return told
        told = told if told.startswith("not correct") else f"not correct; else {told}"
        return f"{told}; of transformers' own: {', '.join(dict.fromkeys(mine))}"


ADDED = "scores = scores + attention_mask  # 0 may attend, finfo.min closes; before the softmax"


def _as_transformers_masks(check: Check) -> Check:
    """A finding whose remedy is a boolean mask, with the one that is handed over here."""

    def run() -> None:
        try:
            check.run()
        except KnownFailure as failure:
            if failure.cause.write != CLOSE:
                raise
            cause = dataclasses.replace(failure.cause, write=ADDED)
            raise KnownFailure(failure.check, failure.property, failure.seen, cause) from None

    return dataclasses.replace(check, run=run)


def hf_door(
    name: str,
    make: Callable[[], Callable[..., Any]],
    wishes: Wishes | None = None,
    patience: float | None = None,
) -> HfDoor:
    """The door to the attention function that ``make`` gives."""
    quiet = io.StringIO()
    try:
        with (
            contextlib.redirect_stdout(quiet),
            contextlib.redirect_stderr(quiet),
            settings_restored(),
            limited(patience),
            contained(),
        ):
            tried = _tried(make())
    except TimeUp as error:
        return _shut(str(error))
    except AttributeError as error:
        return _shut(f"it raised {first_line(error)}{_way_out(error)}")
    except Exception as error:
        return _shut(f"it raised {first_line(error)}")
    function, notes, problem = tried
    if problem and function is None:
        return _shut(problem)
    assert function is not None
    if problem:
        findings: tuple[Check, ...] = (finding(check_hf_output, "plain call", problem),)
    else:
        findings = ()

    def adapted() -> Callable[..., Tensor]:
        return heads_first(dataclasses.replace(function, function=make()))

    door = door_of(name, adapted, wishes, patience)
    # That the flag says nothing beside a mask is transformers' own rule, and no news.
    told = tuple(note for note in door.notes if "together are refused" not in note)
    if door.subject is not None and door.subject.capabilities.masks:
        told += (EMPTY_ROWS,)
    if left := untried(function.function):
        told += (f"{', '.join(left)}: never given a value, so that what that does is not checked",)
    return HfDoor(door, findings, (*notes, *told), function)


def _way_out(error: AttributeError) -> str:
    """What to do where it reads of the layer what the stand-in has not, such as sinks."""
    found = re.search(r"'(\w+)' object has no attribute '(\w+)'", words_of(error))
    if found is None or found[1] not in (StandIn.__name__, LayerConfig.__name__):
        return ""
    inner = ".config" if found[1] == LayerConfig.__name__ else ""
    kept = "layer.config = copy.copy(layer.config); " if inner else ""
    return (
        f"; of the layer that calls it only what every layer has is there: set the rest in a "
        f"function around it, `def attend(module, *args, **kwargs): layer = copy.copy(module); "
        f"{kept}layer{inner}.{found[2]} = ...; return f(layer, *args, **kwargs)`, and check that"
    )


TRIED = frozenset({"scaling", "dropout", "sliding_window"})
"""The keywords that checks give values to."""


def untried(function: object) -> list[str]:
    """Keywords of its own that are never given: what they do, nobody has looked at."""
    parameters = keywords_of(function) if callable(function) else None
    kinds = inspect.Parameter
    own = list((parameters or {}).values())[5:]
    return [
        x.name
        for x in own
        if x.name not in TRIED and x.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)
    ]


def _shut(what: str) -> HfDoor:
    return HfDoor(Door(None, (), ()), (finding(check_hf_output, "plain call", what),), (), None)


def _tried(function: Callable[..., Any]) -> tuple[HfFunction | None, list[str], str]:
    """How it is called, notes, and what is wrong with the form of its output."""
    q, k, v = (normal(2, 3, 5, 8, seed=seed).float() for seed in (81, 82, 83))
    notes: list[str] = []
    with torch.no_grad():
        got = function(stand_in(q, k), q, k, v, None, scaling=8**-0.5, dropout=0.0)
    problem = ""
    if not isinstance(got, tuple | list) or len(got) < 2:
        kind = f"a tuple of {len(got)}" if isinstance(got, tuple | list) else type(got).__name__
        problem = f"it gives {kind}, expected (output, weights); weights may be None"
    out = got[0] if isinstance(got, tuple | list) and got else got
    if not isinstance(out, Tensor):
        return None, notes, problem or f"its output is a {type(out).__name__}, expected a tensor"
    if unfit(out):
        return None, notes, f"its output is {unfit(out)}"
    shape, lengths = tuple(out.shape), (2, 5, 3, 8)
    back = shape == (2, 3, 5, 8)
    if back:
        problem = (
            "its output is (B, H, L, D), expected (B, L, H, D): return "
            "out.transpose(1, 2).contiguous()"
        )
    elif shape != lengths:
        return None, notes, f"its output is {shape}, expected (B, L, H, D) = {lengths}"
    found = HfFunction(function=function, transposed=not back)
    with torch.no_grad():
        outs = [found(q, k, v, is_causal=causal) for causal in (False, True)]
    reads = not torch.equal(outs[0].nan_to_num(), outs[1].nan_to_num())
    if reads:
        notes.append("without a mask it goes by module.is_causal")
    else:
        notes.append(
            "without a mask it does not go by module.is_causal: the causal mask must be handed on"
        )
    return dataclasses.replace(found, reads_flag=reads), notes, problem
