"""Operations: their members agree, wherever two of them take the same call."""

from __future__ import annotations

from polyattn.capabilities import Part, Refusal
from polyattn.contract import SequenceAttention
from polyattn.errors import Unsupported
from polyattn.operation import Operation
from polyattn.testing.results import Mismatch, proves
from polyattn.testing.subjects.sequence import Outcome
from polyattn.testing.subjects.variant import VariantInstance, VariantSubject
from polyattn.testing.tools.cases import Shape
from polyattn.testing.tools.masks import combine
from polyattn.testing.tools.numerics import compare, value_tolerance


@proves(
    "Members of one operation agree, in output and gradients, on every call that two of them take.",
    causes=(
        "a member that drops a part of the mask which it claims",
        "another alignment, scale or policy for empty rows",
        "a backward pass of a kernel that differs from the others",
    ),
    claim="operation",
)
def check_members_agree(subject: VariantSubject, shape: Shape, parts: tuple[Part, ...]) -> None:
    """Raises: Unsupported where fewer than two members take the call."""
    sample = subject.draw(shape).masked(combine(sorted(parts), shape))
    module = subject.factory(subject.config, shape.sizes).to(sample.dtype).eval()
    assert isinstance(module, Operation)
    outcomes: dict[str, Outcome] = {}
    for name, member in zip(module.names, module.members, strict=True):
        assert isinstance(member, SequenceAttention)
        instance = VariantInstance(subject, subject.place.settle(member))
        try:
            outcomes[name] = (
                instance.run(sample) if subject.backward else Outcome(instance(sample), {})
            )
        except Mismatch as mismatch:
            if not isinstance(mismatch.__cause__, Unsupported):
                raise
    if len(outcomes) < 2:
        way_out = "none is needed: there is nothing to compare"
        refusal = Refusal("members", list(outcomes), "calls that two members take", way_out)
        raise Unsupported(subject.name, [refusal])
    (first, want), *others = outcomes.items()
    for name, got in others:
        given = f"{sample.describe()}, {name} against {first}"
        allowed = value_tolerance(want.out, None, sample.dtype)
        compare("the output", got.out, want.out, tolerance=allowed, given=given)
        for leaf, grad in want.grads.items():
            allowed = value_tolerance(grad, None, sample.dtype, gradient=True)
            told = f"the gradient of {leaf}"
            compare(told, got.grads[leaf], grad, tolerance=allowed, given=given)
