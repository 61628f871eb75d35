"""The checks of derivatives beyond the first gradient."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from polyattn.testing.checks.autograd import check_double_backward
from polyattn.testing.checks.derivatives import check_forward_mode
from polyattn.testing.generate.asking import single_parts
from polyattn.testing.planned import Check, planned, withheld
from polyattn.testing.results import Status
from polyattn.testing.subjects.sequence import Subject
from polyattn.testing.subjects.variant import VariantSubject
from polyattn.testing.tools.cases import TINY


def derivative_checks(subject: Subject) -> Iterator[Check]:
    """Forward mode in both directions, and second derivatives under every part of a mask."""
    support = subject.capabilities.devices.get(subject.place.name)
    if not isinstance(subject, VariantSubject) or support is None:
        return
    if torch.float64 not in subject.dtypes:
        yield withheld(check_forward_mode, Status.NOT_RUN, "differences need float64")
        return
    parts = single_parts(subject)
    yield planned(check_forward_mode, "all", subject)
    for name in ("q", "k", "v", *subject.side_inputs):
        yield planned(check_forward_mode, name, subject, (), name)
    for part in sorted(parts):
        yield planned(check_forward_mode, f"all-{part}", subject, (part,), may_refuse=True)
        along = {"bias": "bias0", "alibi": "slopes"}.get(part)
        if along is not None and subject.backward:
            label = f"learned_{part}"
            yield planned(check_forward_mode, label, subject, (part,), along, may_refuse=True)
    if support.double_backward:
        for part in sorted(set(parts) - {"causal"}):
            label = f"one_head-{part}"
            shape = TINY.of(heads=1)
            yield planned(check_double_backward, label, subject, shape, (part,), extended=True)
