"""M. Feature maps that learn and are kept: gradients, one pixel, saving, copying."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.autograd.gradcheck import GradcheckError, gradcheck

from polyattn.testing.process.contained import words_of
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.feature_maps import FeatureMapSubject, run_map
from polyattn.testing.subjects.sequence import blaming
from polyattn.testing.tools.cases import normal
from polyattn.testing.tools.numerics import compare_bits, need_finite, need_tensor


@proves(
    "One sample of one pixel trains: the step is finite, or refused in so many words, by "
    "Unsupported or a ValueError; in evaluation it is answered either way.",
    causes=(
        "means and deviations over the batch by hand: of one number, the deviation is NaN",
        "a standard deviation of one number",
        "a squeeze() that drops the batch",
    ),
)
def check_fm_batch_one_train(subject: FeatureMapSubject, size: tuple[int, ...]) -> None:
    module = subject.build(size[1], subject.dtype).train()
    x = normal(*size, seed=1).to(subject.dtype)
    given = f"x {size}, {subject.dtype}, in training"
    try:
        outcome = run_map(module, x, given)
    except Mismatch as mismatch:
        cause = mismatch.__cause__
        if not isinstance(cause, ValueError) or not words_of(cause).strip():
            raise
        # BatchNorm says so of one number. What trips over the size does it in evaluation, too.
        given = f"{given}, then in evaluation"
        outcome = run_map(module.eval(), x, given)
    need_finite("the output", outcome.out, given)
    for name, grad in outcome.grads.items():
        need_finite(name, grad, given)


@proves(
    "Every parameter holds something, and gets a finite gradient in one step.",
    causes=(
        "a hidden width of channels // ratio, which is 0 for few channels",
        "a layer that is built and not used, which stops distributed training",
        "a detach() or .data on the way to a layer",
    ),
)
def check_fm_parameters(subject: FeatureMapSubject, size: tuple[int, ...]) -> None:
    module = subject.build(size[1], subject.dtype).train()
    given = f"x {size}, {subject.dtype}, in training"
    for name, parameter in module.named_parameters():
        if not parameter.numel():
            what = f"the parameter {name} has the shape {tuple(parameter.shape)}: it holds nothing"
            raise Mismatch(Seen(what=what, given=given))
    x = normal(*size, seed=2).to(subject.dtype)
    with blaming(given):
        out = need_tensor("the output", module(x), given)
        if out.requires_grad:
            torch.autograd.backward(out.square().sum())
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.grad is None:
            raise Mismatch(Seen(what=f"the parameter {name} got no gradient", given=given))
        if parameter.grad is not None:
            need_finite(f"the gradient of {name}", parameter.grad, given)


@proves(
    "The gradients are those of finite differences, in float64.",
    causes=(
        "a backward pass written by hand that lacks one path",
        "a gate, a mean or a normaliser that is detached",
    ),
    claim="devices (backward)",
)
def check_fm_gradcheck(subject: FeatureMapSubject, size: tuple[int, ...], masked: bool) -> None:
    module = subject.build(size[1], torch.float64)
    keep = (normal(size[0], *size[2:], seed=3) > -0.5,) if masked else ()
    x = normal(*size, seed=4).requires_grad_()
    parameters = list(module.parameters())
    given = f"x {size}, float64{', keep' if masked else ''}"

    def function(x: Tensor, *_: Tensor) -> Tensor:
        return need_tensor("the output", module(x, *keep), given)

    with blaming(given):
        try:
            gradcheck(function, (x, *parameters), atol=1e-5, rtol=1e-4)
        except GradcheckError as error:
            told = " ".join(str(error).split())[:300]
            raise Mismatch(Seen(what=told, given=given)) from error


@proves(
    "Saved and loaded into a fresh module, it gives the same; the keys do not depend on the maps "
    "that it has seen.",
    causes=(
        "coordinates or a mask kept as a buffer of the map's size",
        "a random projection kept outside the state",
        "a lazy initialisation that overwrites what was loaded",
    ),
)
def check_fm_state_dict_roundtrip(subject: FeatureMapSubject, size: tuple[int, ...]) -> None:
    module = subject.build(size[1], subject.dtype)
    given = f"x {size}, {subject.dtype}"
    x = normal(*size, seed=5).to(subject.dtype)
    larger = normal(*size[:2], *(2 * n + 1 for n in size[2:]), seed=6).to(subject.dtype)
    fresh = _shapes(module)
    with blaming(given), torch.no_grad():
        module(larger)
        before = need_tensor("the output", module(x), given)
    if _shapes(module) != fresh:
        changed = sorted(fresh.items() ^ _shapes(module).items())
        what = f"the saved state depends on the calls made: {changed[:4]}"
        raise Mismatch(Seen(what=what, given=given))
    saved = io.BytesIO()
    with blaming("torch.save and load_state_dict(strict=True)"), torch.no_grad():
        torch.save(module.state_dict(), saved)
        saved.seek(0)
        other = subject.build(size[1], subject.dtype, seed=1)
        other.load_state_dict(torch.load(saved, weights_only=True), strict=True)
        after = other(x)
    compare_bits("the output after loading", after, before, given=given)


def _shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(x.shape) for name, x in module.state_dict().items()}


COPIES: Mapping[str, Callable[[nn.Module], nn.Module]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
}


@proves(
    "After a step of training it can be copied and pickled, and the copy gives the same bits.",
    causes=(
        "a tensor of the last call's graph that is kept on the module",
        "a lambda, a hook or an open file among the attributes",
        "a copy that shares a cache with the original",
    ),
)
def check_fm_deepcopy_pickle_after_forward(
    subject: FeatureMapSubject, size: tuple[int, ...], how: str
) -> None:
    module = subject.build(size[1], subject.dtype)
    x = normal(*size, seed=7).to(subject.dtype)
    given = f"x {size}, {subject.dtype}, {how} after forward and backward"
    run_map(module, x, given)
    # Before any other call, which would replace what this one left.
    with blaming(given):
        twin = COPIES[how](module)
    with blaming(given), torch.no_grad():
        want, got = module(x), twin(x)
    compare_bits("the output of the copy", got, want, given=given)


@proves(
    "A call under inference_mode leaves nothing that a later step of training trips over.",
    causes=(
        "coordinates, a mask or a mean that is kept from the first call: made under "
        "inference_mode, it cannot be saved for a backward pass",
    ),
)
def check_fm_inference_mode_then_train(subject: FeatureMapSubject, size: tuple[int, ...]) -> None:
    module = subject.build(size[1], subject.dtype)
    x = normal(*size, seed=8).to(subject.dtype)
    given = f"x {size}, {subject.dtype}, after a call under inference_mode"
    with blaming(given), torch.inference_mode():
        module(x.clone())
    got = run_map(module, x, given)
    want = run_map(subject.build(size[1], subject.dtype), x, given)
    compare_bits("the output", got.out, want.out, given=given)
    for name, expected in want.grads.items():
        compare_bits(name, got.grads[name], expected, given=given)
