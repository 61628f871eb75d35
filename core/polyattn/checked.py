"""Do the tensors of a call fit each other? Compared on every call, so it must be cheap."""

from __future__ import annotations

from collections.abc import Mapping, Set

import torch
from torch import Tensor

from polyattn.capabilities import InputSize, Sizes
from polyattn.errors import ShapeError

Extent = tuple[int, int, int, int, tuple[int, int, int]]
"""The sizes of one call, read off its tensors once: B, H, L, S, and (D, Hkv, Dv)."""


def need_tensors(**arguments: object) -> None:
    """Raise ShapeError for the first that is no tensor. Asked only when something went wrong."""
    for name, value in arguments.items():
        if not isinstance(value, Tensor):
            kind = "None" if value is None else f"a {type(value).__name__}"
            way_out = "give one" if value is None else "torch.as_tensor makes one"
            raise ShapeError(f"expected {name} to be a tensor, got {kind}; {way_out}") from None


def check_tensors(q: Tensor, k: Tensor, v: Tensor) -> Extent:
    """The sizes of q (B, H, L, D), k (B, Hkv, S, D), v (B, Hkv, S, Dv).

    Raises: ShapeError, naming what was expected and what came.
    """
    try:
        batch, heads, queries, head_dim = q.shape
        kv_batch, kv_heads, keys, key_dim = k.shape
        value_batch, value_heads, values, value_dim = v.shape
    except ValueError:
        raise ShapeError(_misfit(q, k, v)) from None
    except AttributeError:
        need_tensors(q=q, k=k, v=v)
        raise
    if (
        batch == kv_batch == value_batch
        and head_dim == key_dim > 0
        and value_heads == kv_heads > 0
        and values == keys
        and value_dim > 0
        and heads % kv_heads == 0
        and q.dtype is k.dtype is v.dtype
        and q.device == k.device == v.device
    ):
        return batch, heads, queries, keys, (head_dim, kv_heads, value_dim)
    raise ShapeError(_misfit(q, k, v))


def _misfit(q: Tensor, k: Tensor, v: Tensor) -> str:
    """Which rule the tensors break; asked only when they break one."""
    need_tensors(q=q, k=k, v=v)
    shapes = f"got q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if not q.ndim == k.ndim == v.ndim == 4:
        return f"expected four dimensions each, (B, heads, length, width), {shapes}"
    if not q.shape[0] == k.shape[0] == v.shape[0]:
        return f"expected one batch size, {shapes}"
    if q.shape[3] != k.shape[3]:
        return f"expected q and k of one width, {shapes}"
    if k.shape[1:3] != v.shape[1:3]:
        return f"expected k and v of the same heads and length, {shapes}"
    if 0 in (q.shape[3], v.shape[3]):
        return f"expected widths of at least 1, {shapes}"
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        return f"expected query heads that are a multiple of the key heads, {shapes}"
    if not q.dtype == k.dtype == v.dtype:
        return f"expected q, k, v of one dtype, got {q.dtype}, {k.dtype}, {v.dtype}; convert them"
    return f"expected q, k, v on one device, got {q.device}, {k.device}, {v.device}; move them"


def check_inputs(
    name: str,
    declared: Mapping[str, InputSize],
    inputs: Mapping[str, Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
) -> None:
    """Do the side inputs have the declared names, sizes, dtype and device?"""
    if set(inputs) != set(declared):
        if not isinstance(inputs, Mapping):
            raise ShapeError(
                f"{name}: expected side inputs by name, got a {type(inputs).__name__}; pass "
                "inputs={name: tensor}"
            )
        raise ShapeError(
            f"{name}: expected the side inputs {sorted(declared)}, got {sorted(inputs)}; pass "
            "inputs={name: tensor} to every call"
        )
    for key, size in declared.items():
        heads, width = size.resolve(Sizes(q.shape[1], q.shape[3], k.shape[1], v.shape[3]))
        expected = (k.shape[0], heads, k.shape[2], width)
        given = inputs[key]
        try:
            fits = given.shape == expected and given.dtype == q.dtype and given.device == q.device
        except AttributeError:
            need_tensors(**{f"the side input {key!r}": given})
            raise
        if not fits:
            raise ShapeError(
                f"{name}: expected the side input {key!r} as {expected} {q.dtype} on {q.device}, "
                f"got {tuple(given.shape)} {given.dtype} on {given.device}"
            )


def check_feature_map(
    name: str, x: Tensor, keep: Tensor | None, channels: int | None, spatial: Set[int]
) -> None:
    """Is x (B, C, *spatial) with the channels that were built, and keep bool (B, *spatial)?"""
    try:
        _check_map(name, x, keep, channels, spatial)
    except AttributeError:
        need_tensors(x=x, **({} if keep is None else {"keep": keep}))
        raise


def _check_map(
    name: str, x: Tensor, keep: Tensor | None, channels: int | None, spatial: Set[int]
) -> None:
    if x.ndim - 2 not in spatial:
        dims = ", ".join(str(n) for n in sorted(spatial))
        raise ShapeError(
            f"{name}: expected (B, C, *spatial) with {dims} spatial dimensions, "
            f"got {tuple(x.shape)}"
        )
    if channels is not None and x.shape[1] != channels:
        raise ShapeError(f"{name}: built for {channels} channels, got x {tuple(x.shape)}")
    if keep is None:
        return
    expected = (x.shape[0], *x.shape[2:])
    if keep.dtype != torch.bool or keep.shape != expected or keep.device != x.device:
        raise ShapeError(
            f"{name}: expected keep as bool {expected} on {x.device}, True = a real pixel, got "
            f"{keep.dtype} {tuple(keep.shape)} on {keep.device}"
        )
