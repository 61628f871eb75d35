"""``pytest --polyattn NAME``: the conformance suite with no test file at all.

The ids that it prints, ``polyattn/NAME::check_id``, can be given back to it, with or without
``--polyattn``: then these checks alone are run.

pytest loads this in every run, whether it is asked for or not: so nothing heavy is imported here.
"""

from __future__ import annotations

import shlex
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from polyattn.errors import PolyattnError, suggestion

if TYPE_CHECKING:
    from polyattn.testing.parametrize import Case

ROOT = "polyattn/"
"""What the ids of checks begin with, where those of tests have a path."""
CHOSEN = pytest.StashKey[dict[str, list[str]]]()
"""The ids of checks that were given back, by name."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("polyattn", "conformance of attention variants")
    group.addoption(
        "--polyattn",
        action="append",
        default=[],
        metavar="NAME",
        help="check this variant, operation or preset (repeat it, or separate by commas); without "
        "files on the command line, nothing else is collected; the ids that it prints can be given "
        "as arguments",
    )
    group.addoption(
        "--polyattn-extended", action="store_true", help="with --polyattn: run what takes seconds"
    )
    group.addoption(
        "--polyattn-expected",
        metavar="FILE",
        help="with --polyattn: expected failures, a YAML file of {id: reason}",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Say at once what cannot be; and where no file was asked for, collect none."""
    files = _keep_the_chosen(config)
    names = _names(config)
    given = [name for name in ("extended", "expected") if config.getoption(f"polyattn_{name}")]
    if not names:
        if given:
            raise pytest.UsageError(f"--polyattn-{given[0]}: --polyattn NAME says of what")
        return
    for name in names:
        try:
            _look_for(name)
        except PolyattnError as error:
            raise pytest.UsageError(f"--polyattn {name}: {error}") from None
    asked = config.args_source is pytest.Config.ArgsSource.ARGS
    config.args = files if asked else []


def _keep_the_chosen(config: pytest.Config) -> list[str]:
    """Keep the ids of checks among the arguments; gives the other arguments."""
    chosen = config.stash.setdefault(CHOSEN, {})
    files = []
    for argument in config.args:
        place, _, id = argument.partition("::")
        is_check = place.startswith(ROOT) and id.startswith("check_") and not Path(place).exists()
        if is_check:
            chosen.setdefault(place.removeprefix(ROOT), []).append(id)
        else:
            files.append(argument)
    return files


def _look_for(name: str) -> None:
    """Raises: UnknownName."""
    if name.startswith("core/"):
        from polyattn.testing.subjects.parts import checks_of_part

        checks_of_part(name)
    else:
        from polyattn.registry import discover

        discover().find(name)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The names are collected after the files, beside them."""
    report = yield
    if isinstance(collector, pytest.Session) and _names(collector.config):
        report.result = [*report.result, *_variants(collector)]
    return report


def _variants(session: pytest.Session) -> list[Variant]:
    from polyattn.testing.parametrize import cases_of

    config, names = session.config, _names(session.config)
    try:
        cases = cases_of(names, _expected(config), extended=True)
    except PolyattnError as error:
        raise pytest.UsageError(f"--polyattn: {error}") from None
    return [
        Variant.from_parent(
            session,
            name=name,
            nodeid=f"{ROOT}{name}",
            cases=_asked_for(config, name, [case for case in cases if case.name == name]),
        )
        for name in names
    ]


def _asked_for(config: pytest.Config, name: str, cases: Sequence[Case]) -> list[Case]:
    """Those that were given back by their ids, or by their names without parameters; else all,
    what takes seconds where that was asked for."""
    chosen = config.stash[CHOSEN].get(name)
    if chosen is None:
        extended = config.getoption("polyattn_extended")
        return [case for case in cases if extended or not case.check.extended]
    known = [*(case.check.id for case in cases), *(case.check.name for case in cases)]
    for id in chosen:
        if id not in known:
            hint = suggestion(id, known) or f"; --polyattn {name} --collect-only -q lists them"
            raise pytest.UsageError(f"{ROOT}{name}::{id}: no such check{hint}")
    return [case for case in cases if {case.check.id, case.check.name} & set(chosen)]


def _names(config: pytest.Config) -> list[str]:
    given = [name.strip() for text in config.getoption("polyattn") for name in text.split(",")]
    if not all(given):
        raise pytest.UsageError("--polyattn: expected a name, got an empty one")
    return list(dict.fromkeys([*given, *config.stash[CHOSEN]]))


def _expected(config: pytest.Config) -> dict[str, str]:
    path = config.getoption("polyattn_expected")
    if path is None:
        return {}
    from polyattn.testing.results import read_expected

    return read_expected(Path(path))


class Variant(pytest.Collector):
    """One name that is checked."""

    def __init__(self, *, cases: Sequence[Case], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cases = cases

    def collect(self) -> Iterator[pytest.Item]:
        for case in self.cases:
            yield CheckItem.from_parent(self, name=case.check.id, case=case)


class CheckItem(pytest.Item):
    """One check of it."""

    def __init__(self, *, case: Case, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.case = case
        for mark in case.marks:
            self.add_marker(mark)

    def runtest(self) -> None:
        self.case()

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """A failure stands alone, with the traceback of the code that was checked, if it raised;
        the suite's own frames belong to --full-trace."""
        from polyattn.testing.results import CheckFailure
        from polyattn.testing.tools.recipes import recipe
        from polyattn.testing.tools.tracebacks import told

        if self.config.getoption("fulltrace"):
            return super().repr_failure(excinfo, style)
        error = excinfo.value
        if not isinstance(error, CheckFailure):
            parts = [told(error)]
        elif error.__cause__ is not None:
            parts = [str(error), told(error.__cause__)]
        else:
            parts = [str(error)]
        inputs = recipe(error.seen.given) if isinstance(error, CheckFailure) else ""
        parts += [f"its inputs: {inputs}"] if inputs else []
        return "\n\n".join([*parts, f"run it again: {self._command()}"])

    def _command(self) -> str:
        expected = self.config.getoption("polyattn_expected")
        options = [] if expected is None else ["--polyattn-expected", expected]
        return shlex.join(["pytest", *options, self.nodeid])

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, f"{self.case.name}: {self.case.check.id}"
