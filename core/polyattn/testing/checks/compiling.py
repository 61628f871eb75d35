"""L. Compilation: one graph, few of them for many lengths, and the numbers of the eager code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from polyattn.testing.planned import Trait, having
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.feature_maps import FeatureMapSubject
from polyattn.testing.subjects.sequence import Subject, blaming, run
from polyattn.testing.tools.cases import SQUARE, Sample, normal
from polyattn.testing.tools.compare import same_outcome
from polyattn.testing.tools.masks import combine
from polyattn.testing.tools.numerics import compare, largest, same_tolerance

MOST = 2
"""Graphs for any number of lengths: one for the first, one for all others."""

COMPILES = (
    "Compiled whole, it gives what it gives otherwise, and one graph serves every length from the "
    "second on."
)
BREAKS = (
    "a value of a tensor that is read in Python: .item(), bool(), a shape in a table",
    "a length compared with, or looked up by, a number: one graph for each",
    "a branch that only runs, or never runs, while compiling",
)


@contextmanager
def _compiled(module: nn.Module) -> Iterator[tuple[Callable[..., Any], list[int]]]:
    """The module compiled without a code generator, and the sizes of the graphs made for it."""
    # The compiler takes a second to import: who compiles nothing does not wait for it.
    from torch._dynamo.backends.registry import lookup_backend

    graphs: list[int] = []
    inner = lookup_backend("aot_eager")

    def counting(graph: fx.GraphModule, inputs: list[Tensor]) -> Any:
        graphs.append(len(graph.graph.nodes))
        return inner(graph, inputs)

    torch._dynamo.reset()
    try:
        yield torch.compile(module, backend=counting, fullgraph=True), graphs
    finally:
        torch._dynamo.reset()


def _few(graphs: list[int], most: int, given: str) -> None:
    if len(graphs) > most:
        what = f"{len(graphs)} graphs were made, expected at most {most}"
        raise Mismatch(Seen(what=what, given=given))


def lengths_for(compiles: Literal["no", "fixed", "dynamic"]) -> tuple[int, ...]:
    """The lengths that are tried one after the other; one alone where one alone is claimed."""
    return (12, 20, 37) if compiles == "dynamic" else (12, 12)


@having(Trait.ON_THE_CPU)
@proves(COMPILES, causes=BREAKS, claim="compiles")
def check_compile(subject: Subject) -> None:
    claims = subject.capabilities
    parts = sorted(claims.requires | (claims.masks & {"causal"}))
    lengths = lengths_for(claims.compiles)
    shapes = [subject.fit(SQUARE.of(queries=n, keys=n, value_dim=6)) for n in lengths]
    instance = subject.at(shapes[0])
    module = instance.module()
    assert module is not None, "only what has a module claims to compile"
    with _compiled(module) as (compiled, graphs):

        def call(sample: Sample) -> Tensor:
            out = compiled(sample.q, sample.k, sample.v, sample.mask, sample.inputs)
            assert isinstance(out, Tensor)
            return out

        for shape in shapes:
            sample = subject.draw(shape).masked(combine(parts, shape))
            given = f"{sample.describe()}, compiled"
            if subject.backward:
                with blaming(given):
                    got = run(call, sample, None, given)
                same_outcome(got, instance.run(sample), sample, given=given)
            else:
                with blaming(given):
                    out = call(sample)
                allowed = same_tolerance(sample.dtype, largest(sample.v))
                compare("the output", out, instance(sample), tolerance=allowed, given=given)
        _few(graphs, MOST, f"lengths {[shape.keys for shape in shapes]}")


@having(Trait.ON_THE_CPU)
@proves(COMPILES, causes=BREAKS, claim="compiles")
def check_fm_compile(subject: FeatureMapSubject) -> None:
    dims = max(subject.capabilities.spatial_dims & {1, 2}, default=3)
    lengths = lengths_for(subject.capabilities.compiles)
    module = subject.build(8, subject.dtype)
    with _compiled(module) as (compiled, graphs):
        for length in lengths:
            size = (2, 8, *(length + 3 * i for i in range(dims)))
            x = normal(*size, seed=1).to(subject.dtype)
            given = f"x {size}, compiled"
            with blaming(given), torch.no_grad():
                got, want = compiled(x), module(x)
            tolerance = same_tolerance(subject.dtype, largest(x))
            compare("the output", got, want, tolerance=tolerance, given=given)
        _few(graphs, MOST, f"lengths {list(lengths)}")
