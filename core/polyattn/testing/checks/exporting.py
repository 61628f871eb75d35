"""L. Export: a graph that is written down gives what the eager code gives, at other lengths too."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyattn.capabilities import Capabilities, Part
from polyattn.mask import Mask
from polyattn.testing.planned import Trait, having
from polyattn.testing.results import proves
from polyattn.testing.subjects.feature_maps import FeatureMapSubject
from polyattn.testing.subjects.sequence import Subject, blaming
from polyattn.testing.tools.cases import LONGEST, SQUARE, Sample, Shape, normal, shape_of
from polyattn.testing.tools.compare import output_tolerance
from polyattn.testing.tools.masks import needed, padding_keep
from polyattn.testing.tools.numerics import compare, largest, same_tolerance


class _Call(nn.Module):
    """A call by tensors alone, as an exported program takes them."""

    def __init__(
        self, module: nn.Module, claims: Capabilities, part: Part | None, names: list[str]
    ) -> None:
        super().__init__()
        self.module = module
        self.claims = claims
        self.part = part
        self.names = names

    def forward(self, tensors: list[Tensor], keep: Tensor | None) -> Tensor:
        named = dict(zip(self.names, tensors, strict=True))
        q, k, v = (named.pop(name) for name in ("q", "k", "v"))
        mask = needed(
            self.claims, shape_of(Sample(q=q, k=k, v=v, mask=Mask.full(), inputs=named, seed=0))
        )
        if keep is not None:
            mask = mask & (Mask.padding(keep) if self.part == "padding" else Mask.dense(keep))
        out: Tensor = self.module(q, k, v, mask, named)
        return out


def _keep(shape: Shape, part: Part | None) -> Tensor | None:
    """A mask of its own for each sample; the last sample's rows, or its last row, see nothing."""
    if part is None:
        return None
    if part == "padding":
        keep = padding_keep(shape)
        keep[-1] = False
        return keep
    keep = torch.ones(shape.batch, 1, shape.queries, shape.keys, dtype=torch.bool)
    keep[:, :, 0, 1] = False
    keep[-1, :, -1] = False
    return keep


@having(Trait.ON_THE_CPU)
@proves(
    "Exported, it gives what the eager code gives: at another length where that is claimed, and "
    "with rows that a mask empties.",
    causes=(
        "a value of a tensor that is read in Python: .item(), bool(), a shape in a table",
        "a length that is turned into a number of the graph",
        "a branch for masks without an empty row",
    ),
    claim="exports",
)
def check_export(subject: Subject, part: Part | None = None) -> None:
    lengths = (12, 20, 37) if subject.capabilities.exports == "dynamic" else (12,)
    shapes = [subject.fit(SQUARE.of(queries=n, keys=n)) for n in lengths]
    instance = subject.at(shapes[0])
    module = instance.module()
    assert module is not None, "only what has a module claims to export"
    first = subject.draw(shapes[0])
    call = _Call(module, subject.capabilities, part, list(first.leaves())).eval()
    with blaming(f"{first.describe()}, torch.export"), torch.no_grad():
        program = torch.export.export(
            call,
            (list(first.leaves().values()), _keep(shapes[0], part)),
            dynamic_shapes=_dynamic(subject, first, part) if len(lengths) > 1 else None,
        )
        exported = program.module()
    for shape in shapes:
        sample = subject.draw(shape, seed=1)
        given = f"{sample.describe()}, exported at length {shapes[0].keys}"
        arguments = (list(sample.leaves().values()), _keep(shape, part))
        with blaming(given), torch.no_grad():
            got, want = exported(*arguments), call(*arguments)
        compare("the output", got, want, tolerance=output_tolerance(sample), given=given)


@having(Trait.ON_THE_CPU)
@proves(
    "Exported, a map of another height and width gives what the eager code gives.",
    causes=(
        "a value of a tensor that is read in Python: .item(), bool(), a shape in a table",
        "a pooling window or a reshape by the height and width of the first map",
    ),
    claim="exports",
)
def check_fm_export(subject: FeatureMapSubject, dims: int) -> None:
    fixed = subject.capabilities.exports == "fixed"
    sizes = [(2, 8, *(side + 3 * i for i in range(dims))) for side in (12, 20, 9)]
    module = subject.build(8, subject.dtype)
    first = normal(*sizes[0], seed=1).to(subject.dtype)
    sides = {2 + i: torch.export.Dim(f"side{i}", min=2, max=1024) for i in range(dims)}
    with blaming(f"x {sizes[0]}, torch.export"), torch.no_grad():
        dynamic = None if fixed else (sides,)
        exported = torch.export.export(module, (first,), dynamic_shapes=dynamic).module()
    for size in sizes[:1] if fixed else sizes:
        x = normal(*size, seed=2).to(subject.dtype)
        given = f"x {size}, exported at {sizes[0]}"
        with blaming(given), torch.no_grad():
            got, want = exported(x), module(x)
        tolerance = same_tolerance(subject.dtype, largest(x))
        compare("the output", got, want, tolerance=tolerance, given=given)


def _dynamic(subject: Subject, sample: Sample, part: Part | None) -> tuple[object, object]:
    """Any length that the rule allows, but the longest: there a table is taken whole."""
    rule = subject.capabilities.lengths
    least = max(2, rule.at_least)
    most = (rule.up_to if isinstance(rule.up_to, int) else LONGEST) - 1
    if rule.multiple_of == 1:
        length = torch.export.Dim("length", min=least, max=most)
    else:
        step = rule.multiple_of
        length = step * torch.export.Dim("blocks", min=-(-least // step), max=most // step)
    keep = None if part is None else {"padding": {1: length}, "dense": {2: length, 3: length}}[part]
    return [{2: length} for _ in sample.leaves()], keep
