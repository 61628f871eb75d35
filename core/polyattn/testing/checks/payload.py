"""D. Masks: what lies behind a closed key is not read, whatever it is."""

from __future__ import annotations

import math

import torch

from polyattn.capabilities import Part
from polyattn.mask import Mask
from polyattn.testing.results import proves
from polyattn.testing.subjects.sequence import Outcome, Subject
from polyattn.testing.tools.cases import SQUARE, Shape
from polyattn.testing.tools.compare import output_tolerance
from polyattn.testing.tools.numerics import compare

PAYLOADS = {"nan": math.nan, "inf": math.inf, "minus_inf": -math.inf}
CLOSING: tuple[Part, ...] = ("padding", "dense", "bias")
CLOSED = 3


def closing(part: Part, shape: Shape) -> Mask:
    """A mask of one part that closes key ``CLOSED`` for every query."""
    keep = torch.arange(shape.keys).expand(shape.batch, -1) != CLOSED
    if part == "padding":
        return Mask.padding(keep)
    pairs = keep[:1].expand(shape.queries, -1).clone()
    if part == "dense":
        return Mask.dense(pairs)
    return Mask.bias(torch.zeros(pairs.shape).masked_fill(~pairs, -torch.inf))


@proves(
    "NaN and infinities behind a closed key leave the output and every gradient as they are.",
    causes=(
        "a weight of 0 times a value of NaN: close the values as well as the logits",
        "the gradient of a closed logit, 0, times a key of NaN",
        "the output cleaned by nan_to_num, which leaves NaN in the gradients",
    ),
    claim="nan_blind",
)
def check_masked_payload_ignored(subject: Subject, part: Part, payload: str) -> None:
    shape = subject.fit(SQUARE)
    base, instance = subject.draw(shape), subject.at(shape)
    clean = base.masked(base.mask & closing(part, shape))

    def outcome(names: tuple[str, ...]) -> Outcome:
        spoilt = {name: clean.leaves()[name].clone() for name in names}
        for x in spoilt.values():
            x[:, :, CLOSED] = PAYLOADS[payload]
        sample = clean.having(**spoilt)
        return instance.run(sample) if subject.backward else Outcome(instance(sample), {})

    want = outcome(())
    held = tuple(name for name in clean.leaves() if name != "q")
    for names in (*((name,) for name in held), held):
        got = outcome(names)
        given = f"{clean.describe()}, {payload} in {' and '.join(names)} of key {CLOSED}"
        allowed = output_tolerance(clean)
        compare("the output", got.out, want.out, tolerance=allowed, given=given)
        for name, grad in want.grads.items():
            told = f"the gradient of {name}"
            compare(told, got.grads[name], grad, tolerance=10 * allowed, given=given)
