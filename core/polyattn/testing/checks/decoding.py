"""F. Decoding: any way of cutting a sequence gives what one call gives."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from polyattn.capabilities import Part
from polyattn.mask import Mask
from polyattn.state import State
from polyattn.testing.checks.causality import causal_sample
from polyattn.testing.results import proves
from polyattn.testing.subjects.sequence import Instance, Subject, blaming, fixed_gradient
from polyattn.testing.tools.cases import SQUARE, Sample, shape_of
from polyattn.testing.tools.compare import output_tolerance
from polyattn.testing.tools.numerics import compare, largest, same_tolerance

CUTS: dict[str, tuple[int, ...]] = {
    "tokens": (1,),
    "chunks": (3, 5, 3),
    "prefill": (9, 1),
    "whole": (10_000,),
    "long_chunks": (70, 1, 64),
}
"""Lengths of the chunks, the last of which repeats to the end."""


def decode(instance: Instance, sample: Sample, cut: tuple[int, ...]) -> Tensor:
    """The outputs of a sequence answered chunk by chunk."""
    state = _start(instance, sample)
    outs: list[Tensor] = []
    start = 0
    total = sample.lengths[1]
    while start < total:
        length = cut[min(len(outs), len(cut) - 1)]
        chunk = slice(start, min(start + length, total))
        with blaming(f"{sample.describe()}, positions {chunk.start} to {chunk.stop}"):
            out, state = instance.extend(
                sample.positions(chunk).masked(_of_chunk(sample.mask, chunk)), state
            )
        outs.append(out)
        start = chunk.stop
    return torch.cat(outs, dim=2)


def _start(instance: Instance, sample: Sample) -> State:
    with blaming(f"new_state for {sample.describe()}"):
        return instance.new_state(sample.q.shape[0], shape_of(sample).sizes, sample.dtype)


def _of_chunk(mask: Mask, chunk: slice) -> Mask:
    """What the mask says of the new tokens; causal is implied."""

    def cut(x: Tensor | None) -> Tensor | None:
        return None if x is None else x[:, chunk]

    return dataclasses.replace(
        mask.without("causal"),
        real=cut(mask.real),
        key_ids=cut(mask.key_ids),
        query_ids=None,
        document_lengths=None,
    )


@proves(
    "Decoding in any chunks, token by token included, gives what one causal call gives; gradients "
    "too.",
    causes=(
        "positions counted from the chunk's start",
        "the normaliser missing from the state",
        "a window's buffer that drops a key too early, or one too many",
        "a chunk's own tokens not masked among each other",
    ),
    claim="state",
)
def check_decode_equals_parallel(
    subject: Subject,
    cut: str,
    parts: tuple[Part, ...] = (),
    long: bool = False,
    gradients: bool = False,
    kv_heads: int = 0,
    frozen_keys: bool = False,
) -> None:
    """``frozen_keys``: of all that is given, only the queries require gradients."""
    shape = subject.fit(SQUARE.of(queries=150, keys=150, batch=1) if long else SQUARE)
    if kv_heads:
        shape = shape.of(heads=2 * kv_heads, kv_heads=kv_heads)
    sample, instance = causal_sample(subject, shape, parts), subject.at(shape)
    if "segments" in parts:
        ids = sample.mask.key_ids
        assert ids is not None
        sample = sample.masked(sample.mask.without("segments") & Mask.segments(ids))
    given = f"{sample.describe()}, chunks of {CUTS[cut]}"
    if gradients:
        _same_gradients(instance, sample, cut, frozen_keys, given)
        return
    with torch.no_grad():
        compare(
            "the output of decoding, against one causal call",
            decode(instance, sample, CUTS[cut]),
            instance(sample),
            tolerance=output_tolerance(sample),
            given=given,
        )


def _same_gradients(
    instance: Instance, sample: Sample, cut: str, frozen_keys: bool, given: str
) -> None:
    """Through decoding, against those of one causal call."""
    fresh = sample.each(lambda x: x.clone())
    leaves = {"q": fresh.q} if frozen_keys else fresh.leaves()
    for leaf in leaves.values():
        leaf.requires_grad_()
    pieces = decode(instance, fresh, CUTS[cut])
    with blaming(given):
        found = torch.autograd.grad(
            pieces, list(leaves.values()), fixed_gradient(pieces).to(pieces.dtype)
        )
    wanted = instance.run(sample).grads
    for name, grad in zip(leaves, found, strict=True):
        scale = max(1.0, largest(wanted[name]))
        compare(
            f"the gradient of {name} through decoding",
            grad,
            wanted[name],
            tolerance=same_tolerance(sample.dtype, scale, factor=10.0),
            given=given,
        )


@proves(
    "In a batch padded at the left, every sample decodes as it does alone.",
    causes=(
        "the padding forgotten after the first chunk",
        "positions counted by slot where real tokens should be counted",
        "padding that enters the state",
    ),
    claim="state, masks (padding)",
)
def check_cache_left_padding(subject: Subject, cut: str) -> None:
    shape = subject.fit(SQUARE.of(batch=3))
    sample, instance = causal_sample(subject, shape), subject.at(shape)
    padded = torch.tensor([0, 2, 5]).unsqueeze(1)
    real = torch.arange(shape.keys) >= padded
    batch = sample.masked(sample.mask & Mask.padding(real))
    with torch.no_grad():
        together = decode(instance, batch, CUTS[cut])
        for b in range(shape.batch):
            slots = real[b].nonzero().squeeze(1)
            alone = sample.rows(slice(b, b + 1)).positions(slots)
            compare(
                f"the output of sample {b}, with {int(padded[b])} padded on the left, against it "
                "alone",
                together[b : b + 1, :, slots],
                decode(instance, alone, CUTS[cut]),
                tolerance=output_tolerance(sample),
                given=f"{batch.describe()}, chunks of {CUTS[cut]}",
            )
