"""G. Grouped heads, and many heads, in sequences of several blocks: all of them are looked at."""

from __future__ import annotations

from polyattn.capabilities import Part
from polyattn.testing.results import proves
from polyattn.testing.subjects.sequence import Subject
from polyattn.testing.tools.cases import Shape
from polyattn.testing.tools.compare import against_definition
from polyattn.testing.tools.masks import combine, learned

LENGTHS = (150, 257)
"""More than two blocks of 64, and one more than four."""
MANY_AT = 150
WIDE_AT = 200


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


@proves(
    "With many samples and heads and a sequence of several blocks, output and gradients are those "
    "of the definition.",
    causes=(
        "heads or samples that are taken some at a time, and a remainder that is forgotten",
        "a sequence cut into parts for its memory, whose state is not handed on",
        "a backward pass that goes through such parts in the wrong order",
    ),
)
def check_many_heads_at_length(
    subject: Subject, length: int, parts: tuple[Part, ...] = (), learns_mask: bool = False
) -> None:
    """48 heads of all samples: code that takes some at a time needs several rounds for them.

    learns_mask: slopes require gradients, too, to which every head and sample adds once.
    """
    kv_heads = 8 if subject.capabilities.grouped_heads == "no" else 4
    heads = Shape(name="", batch=6, heads=8, kv_heads=kv_heads, head_dim=4, value_dim=3)
    _at_length(subject, heads, length, parts, learns_mask)


@proves(
    "With many wide values and a sequence of several blocks, output and gradients are those of the "
    "definition.",
    causes=(
        "blocks that are taken some at a time, as many as a buffer holds, and the rest forgotten",
        "the first blocks taken again in the place of the next",
    ),
)
def check_wide_values_at_length(
    subject: Subject, length: int, parts: tuple[Part, ...] = (), learns_mask: bool = False
) -> None:
    """32 heads of 128 values, of one sample: blocks that go together are many numbers."""
    wide = Shape(name="", batch=1, heads=32, head_dim=4, value_dim=128)
    _at_length(subject, wide, length, parts, learns_mask)


def _at_length(
    subject: Subject, sizes: Shape, length: int, parts: tuple[Part, ...], learns_mask: bool
) -> None:
    shape = subject.fit(sizes.of(queries=length, keys=length))
    wanted = sorted(subject.capabilities.requires | set(parts))
    mask = combine(wanted, shape)
    sample = subject.draw(shape).masked(learned(mask) if learns_mask else mask)
    against_definition(subject.at(shape), sample)
