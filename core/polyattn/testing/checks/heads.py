"""I. Heads: fewer key heads than query heads."""

from __future__ import annotations

from torch import Tensor

from polyattn.errors import PolyattnError
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.sequence import Instance, Outcome, Subject
from polyattn.testing.tools.cases import RECTANGULAR, Sample, shape_of
from polyattn.testing.tools.compare import against_definition, same_outcome


@proves(
    "With fewer key heads, neighbouring query heads share one: the result of repeat_interleave, "
    "whose gradients are the sums over each group.",
    causes=(
        "heads tiled (0 1 0 1) in place of repeated (0 0 1 1)",
        "gradients of one head of a group only",
        "something given for each key head that should be given for each query head, as a decay",
    ),
    claim="grouped_heads",
)
def check_gqa_equals_repeated_kv(subject: Subject, heads: int, kv_heads: int) -> None:
    shape = subject.fit(RECTANGULAR.of(heads=heads, kv_heads=kv_heads))
    sample, instance = subject.draw(shape), subject.at(shape)
    if subject.has_definition:
        against_definition(instance, sample)
    if not subject.raw_masks:
        _uneven_groups_raise(subject)
    if not instance.has_parameters:
        _repeated(subject, instance, sample, heads // kv_heads)


def _repeated(subject: Subject, instance: Instance, sample: Sample, group: int) -> None:
    wide = sample.having(
        **{
            name: x.repeat_interleave(group, dim=1)
            for name, x in sample.leaves().items()
            if name != "q" and x.shape[1] * group == sample.q.shape[1]
        }
    )
    full = subject.at(shape_of(wide))
    if not subject.backward:
        got, want = Outcome(instance(sample), {}), Outcome(full(wide), {})
    else:
        got, repeated = instance.run(sample), full.run(wide)
        grads = {
            name: grad if grad.shape == got.grads[name].shape else _over_groups(grad, group)
            for name, grad in repeated.grads.items()
        }
        want = Outcome(repeated.out, grads)
    same_outcome(
        got, want, sample, given=f"{sample.describe()}, against key heads repeated {group} times"
    )


def _uneven_groups_raise(subject: Subject) -> None:
    shape = subject.fit(RECTANGULAR.of(heads=3))
    sample, instance = subject.draw(shape), subject.at(shape)
    uneven = sample.having(k=sample.k[:, :2], v=sample.v[:, :2])
    try:
        instance.raw(uneven)
    except PolyattnError:
        return
    except Exception as error:
        what = f"3 query heads over 2 key heads raised {type(error).__name__}, expected ShapeError"
        raise Mismatch(Seen(what=what, given=uneven.describe())) from error
    raise Mismatch(
        Seen(
            what="3 query heads over 2 key heads were answered, expected ShapeError",
            given=uneven.describe(),
        )
    )


def _over_groups(grad: Tensor, group: int) -> Tensor:
    """The sums over each group of neighbouring heads."""
    batch, heads, *rest = grad.shape
    return grad.reshape(batch, heads // group, group, *rest).sum(2)
