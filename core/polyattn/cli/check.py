"""``polyattn check``: what an attention does right and wrong, for a person."""

from __future__ import annotations

import json

import typer

from polyattn.cli import check_question as asks
from polyattn.cli.check_question import Question
from polyattn.cli.check_report import Report
from polyattn.cli.check_session import Session
from polyattn.errors import PolyattnError
from polyattn.testing.results import read_expected

PATIENCE = 30.0
"""Seconds, where ``--patience`` names none."""


def check(
    target: asks.Target = None,
    every: asks.Every = False,
    door: asks.Door = None,
    causal: asks.Causal = False,
    not_causal: asks.NotCausal = False,
    layout: asks.Layout = None,
    mask_arg: asks.MaskArg = None,
    true_means: asks.TrueMeans = None,
    reference: asks.Reference = None,
    width: asks.Width = None,
    vocab: asks.Vocab = None,
    cache_arg: asks.CacheArg = None,
    only: asks.Only = None,
    extended: asks.Extended = False,
    device: asks.Device = None,
    patience: asks.Patience = None,
    expected: asks.Expected = None,
    as_json: asks.AsJson = False,
) -> None:
    """Check an attention: each property passed, failed or not claimed; failures explained.

    Code that hangs or ends its process is one failed check, and the others are run. Exits 0 where
    all that is claimed holds, 1 where something fails, 2 where the question is wrong, 3 where
    nothing fails and the time was over before all was run, 130 where it is interrupted.
    """
    wishes: dict[str, object] = {
        "mask_arg": mask_arg,
        "true_means": true_means,
        "reference": reference,
        "width": width,
        "vocab": vocab,
        "cache_arg": cache_arg,
        "causal": causal,
        "not_causal": not_causal,
        "layout": layout,
    }
    question = Question(
        target=target,
        every=every,
        door=door,
        wishes=wishes,
        only=tuple(only or ()),
        extended=extended,
        device=device,
        expected=expected,
        patience=patience,
    )
    code = _answered(question, as_json)
    if code:
        raise typer.Exit(code)


def _answered(question: Question, as_json: bool) -> int:
    """The exit code. With ``as_json`` what is wrong with the question is data, too."""
    done: list[Report] = []
    try:
        question.need_sense()
        session = _session(question, as_json)
        done = session.reports
        return session.run(question.target)
    except PolyattnError as error:
        begun = done[-1] if done and done[-1].results and not done[-1].over() else None
        if begun is not None:
            begun.break_off(str(error))
        if as_json:
            name, device = question.target or "--all", question.device or "cpu"
            asked = [] if begun else [Report(name, device, problem=str(error))]
            told = [*filter(Report.over, done), *asked]
            print(json.dumps([report.as_json() for report in told], indent=2))
        raise


def _session(question: Question, as_json: bool) -> Session:
    return Session(
        question=question,
        expected={} if question.expected is None else read_expected(question.expected),
        as_json=as_json,
        patience=PATIENCE if question.patience is None else question.patience,
    )
