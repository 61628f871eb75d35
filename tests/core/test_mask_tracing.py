"""Masks under everything that takes values apart: pytrees, vmap, compile, export, checkpoints."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from polyattn.errors import MaskError
from polyattn.mask import Mask, as_mask

INF = float("inf")


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
    """Softmax attention that uses every lowering, as a plain implementation would."""
    batch, heads, queries, _ = q.shape
    keys = k.shape[2]
    mask = as_mask(mask)
    mask.check(batch, heads, queries, keys, q.device)
    logits = q @ k.transpose(-1, -2)
    bias = mask.logit_bias(queries, keys, dtype=q.dtype, device=q.device)
    keep = mask.keep(queries, keys, batch, heads, q.device)
    seen = mask.visible_rows(queries, keys, batch, heads, q.device)
    if bias is not None:
        logits = logits + bias
    if keep is not None:
        logits = logits.masked_fill(~keep, -INF)
    if seen is not None:
        logits = logits.masked_fill(~seen, 0.0)
    weights = logits.softmax(-1)
    return (weights if seen is None else weights * seen) @ v


def inputs(queries: int, keys: int, batch: int = 2, heads: int = 2) -> tuple[Tensor, ...]:
    torch.manual_seed(queries + keys)
    sizes = (queries, keys, keys)
    return tuple(torch.randn(batch, heads, size, 4, dtype=torch.float64) for size in sizes)


def padded(queries: int, keys: int) -> Mask:
    return Mask.causal(1) & Mask.window(3, 0) & Mask.lengths([keys, keys - 2])


def packed(queries: int, keys: int) -> Mask:
    return Mask.causal() & Mask.documents([[2, keys - 2], [keys]])


def twice_packed(queries: int, keys: int) -> Mask:
    two = Mask.segments(
        torch.arange(2 * queries).view(2, -1) % 3, torch.arange(2 * keys).view(2, -1) % 3
    )
    return two & Mask.documents([[2, keys - 2], [keys]])


def patterns(queries: int, keys: int) -> Mask:
    torch.manual_seed(queries)
    values = torch.randn(2, 1, queries, keys)
    values[0, 0, 1] = -INF
    dense = Mask.dense(torch.rand(queries, keys) < 0.7) & Mask.bias(values)
    return dense & Mask.bias(torch.randn(1, keys).half()) & Mask.alibi(torch.tensor([0.5, 0.25]))


def predicate(queries: int, keys: int) -> Mask:
    return Mask.where(lambda b, h, i, j: (i + b - j) % 3 != h) & Mask.lengths([keys - 1, keys])


KINDS = [padded, packed, twice_packed, patterns, predicate]
every_kind = pytest.mark.parametrize("make", KINDS, ids=[kind.__name__ for kind in KINDS])
Make = Callable[[int, int], Mask]
LENGTHS = [(4, 6), (7, 9)]


class TestPytree:
    @every_kind
    def test_round_trip(self, make: Make) -> None:
        mask = make(4, 6)
        leaves, spec = pytree.tree_flatten(mask)
        assert all(isinstance(leaf, Tensor) for leaf in leaves)
        twin = pytree.tree_unflatten(leaves, spec)
        assert isinstance(twin, Mask)
        assert twin.signature == mask.signature
        q, k, v = inputs(4, 6)
        assert torch.equal(attend(q, k, v, twin), attend(q, k, v, mask))

    def test_layouts_of_documents_are_one_tree(self) -> None:
        first, second = Mask.documents([[2, 3]]), Mask.documents([[4, 1]])
        assert pytree.tree_structure(first) == pytree.tree_structure(second)
        # A map may change the ids, so the host's lengths cannot come along.
        assert pytree.tree_map(lambda ids: ids[:, 1:], first).document_lengths is None

    def test_other_parts_are_other_trees(self) -> None:
        masks = [Mask.full(), Mask.causal(), Mask.causal(1), Mask.window(1, 0), packed(4, 6)]
        specs = [pytree.tree_structure(mask) for mask in masks]
        assert all(a != b for n, a in enumerate(specs) for b in specs[:n])

    def test_children_need_not_be_tensors(self) -> None:
        held = pytree.tree_map(lambda tensor: tensor.shape, patterns(4, 6) & padded(4, 6))
        assert held.biases == ((2, 1, 4, 6), (1, 6))
        assert held.real == (2, 6)
        assert "Mask.bias" in repr(held)

    def test_paths_name_the_fields(self) -> None:
        paths = [pytree.keystr(path) for path, _ in pytree.tree_leaves_with_path(patterns(4, 6))]
        assert paths == [".slopes", ".kept_0", ".biases_0", ".biases_1"]


class TestVmap:
    def test_over_masks_and_inputs(self) -> None:
        q, k, v = (torch.stack([x, -x, 2 * x]) for x in inputs(4, 6))
        masks = [padded(4, 6) & patterns(4, 6), padded(4, 6) & patterns(4, 6).without("alibi")]
        for mask in masks:
            many = pytree.tree_map(lambda t: torch.stack([t, t.flip(-1), t.roll(1, -1)]), mask)
            got = torch.vmap(attend)(q, k, v, many)
            for n in range(3):
                one = pytree.tree_map(lambda t, n=n: t[n], many)
                assert torch.allclose(got[n], attend(q[n], k[n], v[n], one))

    def test_one_mask_for_all(self) -> None:
        q, k, v = (torch.stack([x, -x]) for x in inputs(4, 6))
        mask = packed(4, 6) & predicate(4, 6)
        got = torch.vmap(lambda q, k, v: attend(q, k, v, mask))(q, k, v)
        assert torch.allclose(got[1], attend(q[1], k[1], v[1], mask))

    def test_repr_inside(self) -> None:
        told: list[str] = []

        def look(mask: Mask) -> Tensor:
            told.append(repr(mask))
            assert mask.real is not None
            return mask.real

        torch.vmap(look)(pytree.tree_map(lambda t: t[None], Mask.lengths([2])))
        assert told == ["Mask.padding(bool (1, 2))"]


def compiled(function: Callable[..., Tensor], dynamic: bool = True) -> Callable[..., Tensor]:
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=dynamic)


class TestCompile:
    @every_kind
    def test_as_an_argument(self, make: Make) -> None:
        traced = compiled(attend)
        for queries, keys in LENGTHS:
            q, k, v = inputs(queries, keys)
            mask = make(queries, keys)
            assert torch.allclose(traced(q, k, v, mask), attend(q, k, v, mask))

    def test_with_fixed_lengths(self) -> None:
        q, k, v = inputs(4, 6)
        mask = padded(4, 6) & patterns(4, 6)
        traced = compiled(attend, dynamic=False)
        assert torch.allclose(traced(q, k, v, mask), attend(q, k, v, mask))

    def test_made_inside(self) -> None:
        def whole(q: Tensor, k: Tensor, v: Tensor, real: Tensor, values: Tensor) -> Tensor:
            mask = Mask.causal() & Mask.window(k.shape[2] - 2, 1) & Mask.padding(real)
            mask = mask & Mask.segments(real.long()) & Mask.segments(real.cumsum(1))
            mask = mask & Mask.bias(values) & Mask.where(lambda b, h, i, j: i + b != j + h)
            mask = mask & Mask.dense(values != 0) & Mask.causal(2) & Mask.alibi(values[:2, 0])
            if "window" not in mask.parts or mask.is_full:
                raise AssertionError
            return attend(q, k, v, mask.without("alibi") & mask.only("causal"))

        traced = compiled(whole)
        for queries, keys in LENGTHS:
            more = (torch.rand(2, keys) < 0.8, torch.randn(queries, keys))
            args = (*inputs(queries, keys), *more)
            assert torch.allclose(traced(*args), whole(*args))

    def test_rows(self) -> None:
        def some(q: Tensor, k: Tensor, v: Tensor, mask: Mask, index: Tensor) -> Tensor:
            few = mask.rows(index, q.shape[2], k.shape[2])
            return attend(q[:, :, index], k, v, few)

        traced = compiled(some, dynamic=False)
        index = torch.tensor([3, 1])
        q, k, v = inputs(4, 6)
        mask = padded(4, 6) & patterns(4, 6)
        assert torch.allclose(traced(q, k, v, mask, index), attend(q, k, v, mask)[:, :, index])

    @pytest.mark.parametrize("dynamic", [False, True])
    def test_a_wrong_shape_is_told_while_tracing(self, dynamic: bool) -> None:
        q, k, v = inputs(4, 6)
        with pytest.raises(Exception, match="expected padding of shape"):
            compiled(attend, dynamic)(q, k, v, Mask.lengths([5, 3]))


def test_layouts_of_documents_share_a_graph() -> None:
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(attend, fullgraph=True, backend=counter)
    for cut in (1, 2, 3, 4):
        q, k, v = inputs(6, 6)
        mask = Mask.documents([[cut, 6 - cut], [6]])
        assert torch.allclose(compiled(q, k, v, mask), attend(q, k, v, mask))
    assert counter.frame_count == 1


class Layer(torch.nn.Module):
    def __init__(self, made: Callable[[Tensor], Mask] | None = None) -> None:
        super().__init__()
        self.made = made

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask | None = None) -> Tensor:
        return attend(q, k, v, self.made(k) if self.made else as_mask(mask))


class TestExport:
    @every_kind
    def test_as_an_argument_with_a_dynamic_length(self, make: Make) -> None:
        batch = torch.export.Dim.AUTO
        dynamic = pytree.tree_map(
            lambda tensor: dict.fromkeys(range(tensor.ndim), batch), [*inputs(9, 12), make(9, 12)]
        )
        shapes = (*dynamic[:3], pytree.tree_leaves(dynamic[3], is_leaf=lambda x: type(x) is dict))
        args = (*inputs(9, 12), make(9, 12))
        program = torch.export.export(Layer(), args, dynamic_shapes=shapes)
        for queries, keys in [(9, 12), (5, 7)]:
            q, k, v = inputs(queries, keys)
            other = make(queries, keys)
            if other.predicates:  # the traced function is part of the tree
                other = Mask(real=other.real, predicates=args[3].predicates)
            assert torch.allclose(program.module()(q, k, v, other), attend(q, k, v, other))

    def test_made_inside_with_a_dynamic_length(self) -> None:
        def made(k: Tensor) -> Mask:
            real = torch.arange(k.shape[2]) < torch.tensor([[3], [100]])
            return (
                Mask.causal() & Mask.window(2, 0) & Mask.padding(real) & Mask.segments(real.long())
            )

        length = torch.export.Dim("length", min=2, max=64)
        shapes = {name: {2: length} for name in "qkv"}
        program = torch.export.export(Layer(made), inputs(12, 12), dynamic_shapes=shapes)
        q, k, v = inputs(7, 7)
        assert torch.allclose(program.module()(q, k, v), attend(q, k, v, made(k)))

    def test_saved_and_loaded(self) -> None:
        args = (*inputs(4, 6), padded(4, 6) & packed(4, 6) & patterns(4, 6))
        file = io.BytesIO()
        torch.export.save(torch.export.export(Layer(), args), file)
        file.seek(0)
        # The example inputs are saved too, and torch opens only the classes it is told of.
        with torch.serialization.safe_globals([Mask]):
            program = torch.export.load(file)
        assert torch.allclose(program.module()(*args), attend(*args))

    def test_a_function_cannot_be_saved(self) -> None:
        program = torch.export.export(Layer(), (*inputs(4, 6), predicate(4, 6)))
        with pytest.raises(MaskError, match=r"Mask\.where.*Mask\.dense"):
            torch.export.save(program, io.BytesIO())


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_gives_the_same_gradients(reentrant: bool) -> None:
    values = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    mask = padded(4, 6) & Mask.bias(values)

    def gradients(run: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        q, k, v = (x.requires_grad_() for x in inputs(4, 6))
        run(q, k, v, mask).square().sum().backward()
        assert values.grad is not None
        found = (q.grad, values.grad.clone())
        values.grad = None
        return found  # type: ignore[return-value]

    plain = gradients(attend)
    again = gradients(lambda *args: checkpoint(attend, *args, use_reentrant=reentrant))
    assert torch.equal(plain[0], again[0])
    assert torch.equal(plain[1], again[1])
