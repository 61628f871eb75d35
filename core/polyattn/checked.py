"""Do the tensors of a call fit each other? Compared on every call, so it must be cheap."""

from __future__ import annotations

from collections.abc import Mapping, Set

import torch
from torch import Tensor

from polyattn.capabilities import InputSize, Sizes
from polyattn.errors import ShapeError


def check_tensors(q: Tensor, k: Tensor, v: Tensor) -> tuple[int, int, int, int]:
    """(B, H, L, S) of q (B, H, L, D), k (B, Hkv, S, D), v (B, Hkv, S, Dv).

    Raises: ShapeError, naming what was expected and what came.
    """
    q_shape, k_shape, v_shape = q.shape, k.shape, v.shape
    if not len(q_shape) == len(k_shape) == len(v_shape) == 4:
        raise ShapeError(_shapes("four dimensions each, (B, heads, length, width)", q, k, v))
    batch, heads, queries, head_dim = q_shape
    kv_batch, kv_heads, keys, key_dim = k_shape
    if kv_batch != batch or v_shape[0] != batch:
        raise ShapeError(_shapes("one batch size", q, k, v))
    if key_dim != head_dim:
        raise ShapeError(_shapes("q and k of one width", q, k, v))
    if v_shape[1] != kv_heads or v_shape[2] != keys:
        raise ShapeError(_shapes("k and v of the same heads and length", q, k, v))
    if kv_heads == 0 or heads % kv_heads:
        raise ShapeError(_shapes("query heads that are a multiple of the key heads", q, k, v))
    if head_dim == 0 or v_shape[3] == 0:
        raise ShapeError(_shapes("widths of at least 1", q, k, v))
    if not q.dtype == k.dtype == v.dtype:
        raise ShapeError(
            f"expected q, k, v of one dtype, got {q.dtype}, {k.dtype}, {v.dtype}; convert them"
        )
    if not q.device == k.device == v.device:
        raise ShapeError(
            f"expected q, k, v on one device, got {q.device}, {k.device}, {v.device}; move them"
        )
    return batch, heads, queries, keys


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
        raise ShapeError(
            f"{name}: expected the side inputs {sorted(declared)}, got {sorted(inputs)}; pass "
            "inputs={name: tensor} to every call"
        )
    for key, size in declared.items():
        heads, width = size.resolve(Sizes(q.shape[1], q.shape[3], k.shape[1], v.shape[3]))
        expected = (k.shape[0], heads, k.shape[2], width)
        given = inputs[key]
        if given.shape != expected or given.dtype != q.dtype or given.device != q.device:
            raise ShapeError(
                f"{name}: expected the side input {key!r} as {expected} {q.dtype} on {q.device}, "
                f"got {tuple(given.shape)} {given.dtype} on {given.device}"
            )


def _shapes(expected: str, q: Tensor, k: Tensor, v: Tensor) -> str:
    q_shape, k_shape, v_shape = (tuple(x.shape) for x in (q, k, v))
    return f"expected {expected}, got q {q_shape}, k {k_shape}, v {v_shape}"


def check_feature_map(
    name: str, x: Tensor, keep: Tensor | None, channels: int | None, spatial: Set[int]
) -> None:
    """Is x (B, C, *spatial) with the channels that were built, and keep bool (B, *spatial)?"""
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
