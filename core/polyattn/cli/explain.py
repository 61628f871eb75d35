"""``polyattn explain``: who answers a call, and why the others do not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyattn import strict_yaml
from polyattn.cli import tables
from polyattn.errors import ConfigError
from polyattn.registry import Registry, discover
from polyattn.spec import VariantSpec

if TYPE_CHECKING:
    from polyattn.capabilities import Call
    from polyattn.factory import Explanation

Name = Annotated[str | None, typer.Argument(help="Default: every variant over sequences.")]
Part = Annotated[bool, typer.Option(help="The mask has this part.")]


def explain(
    name: Name = None,
    length: Annotated[int | None, typer.Option(min=0, help="S, the number of keys.")] = None,
    queries: Annotated[int | None, typer.Option(min=0, help="L; default: as many as keys.")] = None,
    heads: Annotated[int, typer.Option(min=1)] = 8,
    kv_heads: Annotated[int | None, typer.Option(min=1, help="Default: as many as heads.")] = None,
    head_dim: Annotated[int, typer.Option(min=1)] = 64,
    value_dim: Annotated[int | None, typer.Option(min=1, help="Default: the head width.")] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, float16 or float64.")] = "float32",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    causal: Part = False,
    window: Annotated[
        str | None, typer.Option(metavar="LEFT,RIGHT", help="'none' for an open side.")
    ] = None,
    padding: Part = False,
    segments: Part = False,
    dense: Part = False,
    bias: Part = False,
    alibi: Part = False,
    dropout: Annotated[float, typer.Option(min=0, max=1)] = 0.0,
    grad: Annotated[bool, typer.Option(help="Gradients are wanted.")] = False,
    cross: Annotated[bool, typer.Option(help="Keys of another sequence.")] = False,
    decode: Annotated[bool, typer.Option(help="Step by step, with a state.")] = False,
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="An option of the variant.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print data, not a table.")] = False,
) -> None:
    """Explain who answers a call: an operation's choice, or what each variant refuses."""
    from polyattn.capabilities import Call, Sizes
    from polyattn.factory import explain as explain_call
    from polyattn.factory import resolve

    marks = {"causal": causal, "padding": padding, "segments": segments, "dense": dense}
    marks |= {"bias": bias, "alibi": alibi, "window": window is not None}
    call = Call(
        device=device,
        dtype=_dtype(dtype),
        queries=length if queries is None else queries,
        keys=length,
        sizes=Sizes(heads, head_dim, kv_heads or heads, value_dim or head_dim, length or None),
        parts=frozenset(part for part, given in marks.items() if given),
        prefix=0 if causal else None,
        window=None if window is None else _window(window),
        dropout=dropout,
        grad=grad,
        cross=cross,
        state=decode,
    )
    registry = discover()
    _refuse_feature_map(registry, name)
    given = _options(option or ())
    if name is None and given:
        raise ConfigError(
            f"--option {next(iter(given))}: expected with the name of a variant or operation, got "
            "no name; `polyattn explain NAME --option ...`"
        )
    if name is not None and given:
        # What a user mistyped is an error, not a reason of the variant's.
        resolve(name, given, registry=registry)
    rows = explain_call(name, call, given, registry=registry)
    answers = [*_answers(rows), *_unavailable(registry, name)]
    if as_json:
        print(json.dumps({"call": _described(call), "answers": answers}, indent=2))
        return
    _print(call, answers)


def _dtype(name: str) -> Any:
    import torch

    known = ("float32", "float64", "bfloat16", "float16")
    if name not in known:
        raise ConfigError(f"--dtype {name!r}: expected one of {', '.join(known)}")
    return getattr(torch, name)


def _window(text: str) -> tuple[int | None, int | None]:
    sides = [side.strip() for side in text.split(",")]
    if len(sides) != 2 or not all(side == "none" or side.isdecimal() for side in sides):
        raise ConfigError(
            f"--window {text!r}: expected LEFT,RIGHT, the keys before and after the query's own, "
            "as in 255,0 ('none' for an open side)"
        )
    left, right = (None if side == "none" else int(side) for side in sides)
    return left, right


def _options(given: Sequence[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for text in given:
        key, found, value = text.partition("=")
        if not found:
            raise ConfigError(f"--option {text!r}: expected KEY=VALUE, as in left=255")
        key = key.strip()
        if key in options:
            raise ConfigError(f"--option {key}: given twice; give each option once")
        options[key] = strict_yaml.load(value, f"--option {text}")
    return options


def _refuse_feature_map(registry: Registry, name: str | None) -> None:
    spec = registry.find(name).spec if name is not None else None
    if isinstance(spec, VariantSpec) and spec.kind == "feature_map":
        raise ConfigError(
            f"{name!r} attends over feature maps, and a call is over sequences; "
            f"`polyattn show {name}` says what it takes"
        )


def _answers(rows: Sequence[Explanation]) -> Iterator[dict[str, Any]]:
    """One answer for each row; after an operation's choice, nobody was asked."""
    chosen: str | None = None
    for row in rows:
        if row.chosen is not None:
            chosen = row.chosen
        reasons = [row.problem] if row.problem else [str(refusal) for refusal in row.refusals]
        answer = "cannot be used" if row.problem else "refuses" if reasons else "answers"
        if row.chosen is not None:
            answer = f"chooses {row.chosen}"
        elif chosen is not None and not reasons:
            answer = "chosen" if row.name == chosen else "would answer too"
        yield {"name": row.name, "answer": answer, "chosen": row.chosen, "reasons": reasons}


def _unavailable(registry: Registry, name: str | None) -> Iterator[dict[str, Any]]:
    """Members of an operation that cannot even be asked."""
    for entry in registry.entries:
        spec = entry.spec
        if isinstance(spec, VariantSpec) and spec.operation == name and name and entry.reason:
            reasons = [entry.reason]
            yield {
                "name": entry.name,
                "answer": "cannot be used",
                "chosen": None,
                "reasons": reasons,
            }


def _described(call: Call) -> Mapping[str, Any]:
    sizes = call.sizes
    assert sizes is not None
    return {
        "device": call.device,
        "dtype": str(call.dtype).removeprefix("torch."),
        "queries": call.queries,
        "keys": call.keys,
        "heads": sizes.heads,
        "kv_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "value_dim": sizes.value_dim,
        "mask": sorted(call.parts or ()),
        "window": call.window,
        "dropout": call.dropout,
        "grad": call.grad,
        "cross": call.cross,
        "decode": call.state,
    }


_ALWAYS = ("queries", "keys")
"""Said of a call even where they are 0: an empty sequence is a case of its own."""


def _print(call: Call, answers: Sequence[Mapping[str, Any]]) -> None:
    described = [
        f"{key} {', '.join(map(str, value)) if isinstance(value, list | tuple) else value}"
        for key, value in _described(call).items()
        if (key in _ALWAYS and value is not None) or value not in (None, False, [], 0.0)
    ]
    rows = []
    for answer in answers:
        first, *others = answer["reasons"] or [""]
        rows.append((answer["name"], answer["answer"], first))
        rows.extend(("", "", reason) for reason in others)
    console = tables.console()
    console.print(f"call: {'; '.join(described)}", markup=False, highlight=False)
    tables.show(console, ("name", "answer", "why"), rows)
