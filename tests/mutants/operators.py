"""The changes that mutants are made by: each takes a node and yields what could stand there."""

from __future__ import annotations

import ast
import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import TypeVar

from polyattn import PARTS, Capabilities

Operator = Callable[[ast.AST], Iterator[ast.AST]]
N = TypeVar("N", bound=ast.AST)

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
TWINS = (
    ("min", "max"),
    ("amin", "amax"),
    ("any", "all"),
    ("tril", "triu"),
    ("tril_", "triu_"),
    ("zeros", "ones"),
    ("new_zeros", "new_ones"),
    ("zeros_like", "ones_like"),
    ("add_", "sub_"),
    ("mul_", "div_"),
    ("sum", "mean"),
    ("exp", "expm1"),
    ("exp_", "expm1_"),
    ("sigmoid", "tanh"),
    ("relu", "abs"),
    ("reversed", "list"),
)
NAMES = {a: b for pair in TWINS for a, b in (pair, pair[::-1])}
MODULES = frozenset({"torch", "math", "nn", "kit", "F", "self", "cls", "ctx", "pydantic", "aten"})
SYMMETRIC = frozenset({"min", "max", "zip", "add_", "mul"})
LARGER_STATES: dict[object, tuple[str, ...]] = {
    "none": ("key_value", "sliding", "recurrent"),
    "key_value": ("sliding", "recurrent"),
    "sliding": ("recurrent",),
    "recurrent": ("sliding",),
}
"""By a kind of state, those that promise something it does not: a bound, or another content."""
CLAIMED = frozenset({"Capabilities", "FeatureMapCapabilities", "Support", "replace"})


def comparison(node: ast.AST) -> Iterator[ast.AST]:
    """Another comparison in the place of one."""
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            for other in COMPARISONS[type(op)]:
                yield _with(node, ops=[*node.ops[:i], other(), *node.ops[i + 1 :]])


def arithmetic(node: ast.AST) -> Iterator[ast.AST]:
    """Another operation of two operands, one of them alone, or both in the other order."""
    if isinstance(node, ast.AugAssign) and type(node.op) in ARITHMETIC:
        yield _with(node, op=ARITHMETIC[type(node.op)]())
    if not isinstance(node, ast.BinOp):
        return
    if type(node.op) in ARITHMETIC:
        yield _with(node, op=ARITHMETIC[type(node.op)]())
    if not isinstance(node.op, ast.MatMult):
        yield node.left
    if isinstance(node.op, ast.Add | ast.BitAnd | ast.BitOr | ast.Sub):
        yield node.right
    if not isinstance(node.op, ast.Add | ast.Mult | ast.BitAnd | ast.BitOr):
        yield _with(node, left=node.right, right=node.left)


def sign(node: ast.AST) -> Iterator[ast.AST]:
    """A sign, a ``not`` or a ``~`` left out."""
    if isinstance(node, ast.UnaryOp):
        yield node.operand


def boolean(node: ast.AST) -> Iterator[ast.AST]:
    """``and`` for ``or``, or one part left out."""
    if isinstance(node, ast.BoolOp):
        yield _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
        for i in range(len(node.values)):
            rest = [*node.values[:i], *node.values[i + 1 :]]
            yield rest[0] if len(rest) == 1 else _with(node, values=rest)


def condition(node: ast.AST) -> Iterator[ast.AST]:
    """A condition that always holds, or never."""
    if isinstance(node, ast.If | ast.IfExp):
        for value in (True, False):
            yield _with(node, test=ast.Constant(value))
        if not isinstance(node.test, ast.Compare | ast.UnaryOp):
            yield _with(node, test=ast.UnaryOp(ast.Not(), node.test))
    if isinstance(node, ast.comprehension) and node.ifs:
        yield _with(node, ifs=[])


def constant(node: ast.AST) -> Iterator[ast.AST]:
    """A number one larger or one smaller, or a flag turned over."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield ast.Constant(not node.value)
        elif isinstance(node.value, int | float):
            for step in (1, -1):
                number = node.value + step
                yield ast.Constant(number) if number >= 0 else _minus(-number)


def dropped_argument(node: ast.AST) -> Iterator[ast.AST]:
    """A call without one of its arguments or keywords."""
    if isinstance(node, ast.Call):
        for i in range(len(node.args)):
            yield _with(node, args=[*node.args[:i], *node.args[i + 1 :]])
        for i in range(len(node.keywords)):
            yield _with(node, keywords=[*node.keywords[:i], *node.keywords[i + 1 :]])


def swapped_arguments(node: ast.AST) -> Iterator[ast.AST]:
    """Two neighbouring arguments, or parts of what is returned, in the other order."""
    if isinstance(node, ast.Call) and _last_name(node.func) not in SYMMETRIC:
        for args in _swapped(node.args):
            yield _with(node, args=args)
    if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
        for parts in _swapped(node.value.elts):
            yield _with(node, value=ast.Tuple(parts, ast.Load()))


def dropped_call(node: ast.AST) -> Iterator[ast.AST]:
    """``x.f(...)`` or ``x.mT`` as x alone; ``f(x, ...)`` as x alone where f is a name."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        owner = node.func.value
        if not (isinstance(owner, ast.Name | ast.Attribute) and _last_name(owner) in MODULES):
            yield owner
        elif node.args and not isinstance(node.args[0], ast.Starred):
            yield node.args[0]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
        if node.func.id in {"pad", "dropout", "logsigmoid", "reversed", "_stacked", "abs", "max"}:
            yield node.args[0]
        if node.func.id in {"min", "max"} and len(node.args) == 2:
            yield node.args[1]
    if isinstance(node, ast.Attribute) and node.attr == "mT":
        yield node.value


def twin(node: ast.AST) -> Iterator[ast.AST]:
    """The other function of a pair that is easily confused."""
    if isinstance(node, ast.Call):
        func = node.func
        if isinstance(func, ast.Name) and func.id in NAMES:
            yield _with(node, func=ast.Name(NAMES[func.id], ast.Load()))
        if isinstance(func, ast.Attribute) and func.attr in NAMES:
            yield _with(node, func=ast.Attribute(func.value, NAMES[func.attr], ast.Load()))
        for i, keyword in enumerate(node.keywords):
            if keyword.arg in {"min", "max"}:
                other = ast.keyword(NAMES[keyword.arg], keyword.value)
                yield _with(node, keywords=[*node.keywords[:i], other, *node.keywords[i + 1 :]])


def open_slice(node: ast.AST) -> Iterator[ast.AST]:
    """A slice without one of its ends, or one further."""
    if isinstance(node, ast.Slice):
        for field in ("lower", "upper", "step"):
            end = getattr(node, field)
            if end is not None:
                yield _with(node, **{field: None})
                if field != "step" and not isinstance(end, ast.Constant):
                    for op in (ast.Add, ast.Sub):
                        yield _with(node, **{field: ast.BinOp(end, op(), ast.Constant(1))})


def shifted_bound(node: ast.AST) -> Iterator[ast.AST]:
    """An argument of ``range`` or ``slice`` one further or one nearer."""
    if isinstance(node, ast.Call) and _last_name(node.func) in {"range", "slice", "min", "max"}:
        for i, end in enumerate(node.args):
            if isinstance(end, ast.Constant | ast.Starred):
                continue
            for op in (ast.Add, ast.Sub):
                moved = ast.BinOp(end, op(), ast.Constant(1))
                yield _with(node, args=[*node.args[:i], moved, *node.args[i + 1 :]])


def removed_statement(node: ast.AST) -> Iterator[ast.AST]:
    """A statement left out, where what follows can still be read."""
    kinds = ast.Expr | ast.AugAssign | ast.If | ast.For | ast.With | ast.Assign
    if isinstance(node, kinds):
        yield ast.Pass()


def shortened_loop(node: ast.AST) -> Iterator[ast.AST]:
    """A loop without its first or its last round, or with the first alone."""
    if isinstance(node, ast.For):
        one, last = ast.Constant(1), _minus(1)
        for part in (ast.Slice(one), ast.Slice(None, last), ast.Slice(None, one)):
            every = ast.List([ast.Starred(node.iter, ast.Load())], ast.Load())
            yield _with(node, iter=ast.Subscript(every, part, ast.Load()))


def detached(node: ast.AST) -> Iterator[ast.AST]:
    """A factor of a product, or what is returned, cut off from its gradient."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        yield _with(node, left=_detach(node.left))
        yield _with(node, right=_detach(node.right))


def early_return(node: ast.AST) -> Iterator[ast.AST]:
    """A function of tensors that gives its first argument back."""
    if isinstance(node, ast.FunctionDef) and node.returns and ast.unparse(node.returns) == "Tensor":
        names = [a.arg for a in node.args.args if a.arg not in {"self", "cls"}]
        if names:
            yield _with(node, body=[ast.Return(ast.Name(names[0], ast.Load()))])


OPERATORS: tuple[Operator, ...] = (
    comparison,
    arithmetic,
    sign,
    boolean,
    condition,
    constant,
    dropped_argument,
    swapped_arguments,
    dropped_call,
    twin,
    open_slice,
    shifted_bound,
    removed_statement,
    shortened_loop,
    detached,
    early_return,
)


def is_claim(node: ast.AST) -> bool:
    """Whether a node is a set of claims: ``Capabilities(...)``, ``replace(_CLAIMS, ...)``."""
    if not isinstance(node, ast.Call) or _last_name(node.func) not in CLAIMED:
        return False
    return _last_name(node.func) != "replace" or _last_name(node.args[0]) == "_CLAIMS"


def claims(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Claims of more than what is so, by what is claimed."""
    assert isinstance(node, ast.Call)
    given = {keyword.arg: keyword.value for keyword in node.keywords}
    kind = _last_name(node.func)
    if kind == "Capabilities":
        for field in dataclasses.fields(Capabilities):
            if field.default is False and field.name not in given:
                yield "claimed", _claiming(node, field.name, ast.Constant(True))
        for part in sorted(PARTS) if isinstance(given.get("masks"), ast.Set | ast.Call) else ():
            more = ast.parse(f"frozenset({ast.unparse(given['masks'])}) | {{{part!r}}}").body[0]
            assert isinstance(more, ast.Expr)
            if repr(part) not in ast.unparse(given["masks"]):
                yield "claimed", _claiming(node, "masks", more.value)
        if "state" not in given:
            for state in ("key_value", "recurrent"):
                yield "claimed", _claiming(node, "state", ast.Constant(state))
        if "grouped_heads" not in given:
            yield "claimed", _claiming(node, "grouped_heads", ast.Constant("native"))
    for name, value in given.items():
        for other in _more(name, value):
            yield "claimed", _claiming(node, name, other)
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call) and _last_name(inner.func) == "Support":
            yield from _more_support(node, inner)


def _more(name: str | None, value: ast.expr) -> Iterator[ast.expr | None]:
    """What claims more than ``name=value``; None: the keyword left out."""
    if name in {"requires", "lengths", "value_width", "dropout"}:
        if not (isinstance(value, ast.Constant) and value.value is True):
            yield None
    elif name == "state" and isinstance(value, ast.Constant):
        for other in LARGER_STATES.get(value.value, ()):
            yield ast.Constant(other)
    elif name == "exactness" and not (isinstance(value, ast.Constant) and value.value == "exact"):
        yield ast.Constant("exact")
    elif name == "gate":
        for bounds in ((0.0, 0.6), (0.4, 1.0)):
            yield ast.Tuple([ast.Constant(x) for x in bounds], ast.Load())


def _more_support(node: ast.Call, inner: ast.Call) -> Iterator[tuple[str, ast.AST]]:
    """Derivatives claimed that are not there. ``dtypes`` are narrowed for CUDA alone."""
    if any(keyword.arg == "dtypes" for keyword in inner.keywords):
        return
    have = {keyword.arg for keyword in inner.keywords}
    for name in ("double_backward", "forward_ad"):
        if name not in have:
            place = next(i for i, n in enumerate(ast.walk(node)) if n is inner)
            changed = copy.deepcopy(node)
            twin = [*ast.walk(changed)][place]
            assert isinstance(twin, ast.Call)
            twin.keywords.append(ast.keyword(name, ast.Constant(True)))
            yield "claimed", changed


def _claiming(node: ast.Call, name: str | None, value: ast.expr | None) -> ast.Call:
    kept = [keyword for keyword in node.keywords if keyword.arg != name]
    new = [] if value is None else [ast.keyword(name, value)]
    return _with(node, keywords=[*kept, *new])


def reassigned(function: ast.FunctionDef) -> frozenset[int]:
    """The assignments, by identity, whose every name has a value before them."""
    arguments = function.args
    bound = {a.arg for a in (*arguments.args, *arguments.kwonlyargs)}
    found = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            names = {
                x.id
                for x in ast.walk(ast.Tuple(node.targets, ast.Load()))
                if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)
            }
            if names <= bound:
                found.add(id(node))
            bound |= names
    return frozenset(found)


def _with(node: N, **fields: object) -> N:
    """A shallow copy of a node with some fields changed."""
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _minus(number: float) -> ast.expr:
    return ast.UnaryOp(ast.USub(), ast.Constant(number))


def _swapped(parts: list[ast.expr]) -> Iterator[list[ast.expr]]:
    for i in range(len(parts) - 1):
        yield [*parts[:i], parts[i + 1], parts[i], *parts[i + 2 :]]


def _detach(node: ast.expr) -> ast.expr:
    return ast.Call(ast.Attribute(node, "detach", ast.Load()), [], [])


def _last_name(node: ast.AST) -> str:
    return ast.unparse(node).rpartition(".")[2]
