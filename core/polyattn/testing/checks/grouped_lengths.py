"""G. Grouped heads in sequences of several blocks, where blocks and heads can change places."""

from __future__ import annotations

from polyattn.capabilities import Part
from polyattn.testing.cases import Shape
from polyattn.testing.compare import against_definition
from polyattn.testing.masks import combine
from polyattn.testing.results import proves
from polyattn.testing.subject import Subject

LENGTHS = (150, 257)
"""More than two blocks of 64, and one more than four."""


@proves(
    "With fewer key heads and a sequence of several blocks, output and gradients are those of the "
    "definition.",
    causes=(
        "blocks and heads of a group that change places in a view",
        "a path for long sequences that repeats key heads in another order",
        "gradients of key heads that are summed over one block only",
    ),
    claim="grouped_heads",
)
def check_grouped_heads_at_length(
    subject: Subject, length: int, parts: tuple[Part, ...] = ()
) -> None:
    shape = subject.fit(
        Shape(name="", heads=4, kv_heads=2, queries=length, keys=length, value_dim=5)
    )
    wanted = sorted(subject.capabilities.requires | set(parts))
    sample = subject.draw(shape).masked(combine(wanted, shape))
    against_definition(subject.at(shape), sample)
