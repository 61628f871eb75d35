"""B. Values: an option that every variant shares is read, in every branch."""

from __future__ import annotations

from polyattn.capabilities import Part
from polyattn.testing.results import proves
from polyattn.testing.subjects.sequence import blaming
from polyattn.testing.subjects.variant import VariantSubject
from polyattn.testing.tools.cases import Shape
from polyattn.testing.tools.compare import against_definition
from polyattn.testing.tools.masks import combine

SCALE = 0.73
"""No power of two, and no inverse root of a width that is asked for."""


@proves(
    "The option scale is read: with another one the output and the gradients are those of the "
    "definition with that.",
    causes=(
        "a branch, or a kernel, that takes its own default scale",
        "the scale forgotten in the backward pass",
        "a scale of 1/sqrt(D) written into the code beside the option",
    ),
    claim="Config.scale",
)
def check_scale_is_read(subject: VariantSubject, shape: Shape, parts: tuple[Part, ...]) -> None:
    with blaming(f"the option scale={SCALE:g}"):
        config = type(subject.config)(**{**dict(subject.config), "scale": SCALE})
        scaled = VariantSubject(subject.name, subject.factory, config, subject.place)
    shape = scaled.fit(shape)
    mask = combine(sorted(scaled.capabilities.requires | frozenset(parts)), shape)
    sample = scaled.draw(shape).masked(mask)
    against_definition(scaled.at(shape), sample, note=f"scale {SCALE:g}")
