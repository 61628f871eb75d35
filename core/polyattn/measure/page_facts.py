"""The small print of the page: machine, versions, settings, and what was proven."""

from __future__ import annotations

from collections.abc import Iterator

from polyattn.measure.results import Comparison, Measurement, Proof


def machine_facts(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """Pairs of a key and its value, as plain text."""
    plan, machine = comparison.plan, comparison.machine
    if machine is not None:
        yield "machine", f"{machine.processor}, {machine.cores} cores; {machine.system}"
        yield (
            "versions",
            f"polyattn {machine.polyattn}, torch {machine.torch}, Python {machine.python}",
        )
        yield "threads", f"{machine.threads} for timings, 1 for each of two learning processes"
        settings = ", ".join(f"{key}={value}" for key, value in machine.allocator.items())
        yield "allocator", settings
    model = plan.model
    yield (
        "learning model",
        f"{model.layers} layers of {model.d_model}, {model.heads} heads, "
        f"{model.norm}, {model.feed_forward} of {model.width}",
    )
    for name, task in plan.tasks.items():
        yield (
            f"task {name}",
            f"context {task.context}, positions {task.position}, batch {task.batch}, at most "
            f"{task.steps} steps, learning rate {task.learning_rate:g}",
        )
    yield "seeds", f"{', '.join(map(str, plan.seeds))}{_further(comparison)}"
    yield "text", f"{plan.text.source}, sha256 {plan.text.sha256[:16]}"
    yield "held out", f"its last {plan.text.held_out:,} bytes"


def _further(comparison: Comparison) -> str:
    seeds = ", ".join(map(str, comparison.plan.baseline_seeds))
    return (
        f"; {comparison.plan.baseline} also {seeds}, to see how much a seed matters"
        if seeds
        else ""
    )


def proof_rows(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    """Cells of the table of proofs."""
    for run in comparison.lengths:
        for measurement in run.measurements:
            proof = measurement.proof
            if proof is not None:
                yield (
                    measurement.variant,
                    f"{run.length:,}",
                    _rows(proof, run.length),
                    _who(measurement),
                    f"{proof.errors['output']:.1e} / {proof.allowed['output']:.1e}",
                    _gradients(proof),
                )


def _who(measurement: Measurement) -> str:
    """Who answered; both names where the passes were answered by two."""
    names = dict.fromkeys(measurement.ran.values())
    if len(names) < 2:
        return next(iter(names), "")
    return ", ".join(f"{kind} {name}" for kind, name in measurement.ran.items())


def _rows(proof: Proof, length: int) -> str:
    where = "" if proof.length == length else f" at {proof.length:,} tokens"
    return ("all" if proof.rows == proof.length else f"{proof.rows} sampled") + where


def _gradients(proof: Proof) -> str:
    """The gradient that came nearest to its bound."""
    shares = {
        name: error / proof.allowed[name] if proof.allowed[name] else 0.0
        for name, error in proof.errors.items()
        if name != "output"
    }
    worst = max(shares, key=lambda name: shares[name])
    return f"at most {shares[worst]:.0%} of the bound ({worst})"
