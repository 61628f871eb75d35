"""A process for one mutant: forked before the plugin's modules are imported, gone afterwards.

The parent has torch and the suite imported, and no module of the built-in variants: an operator of
torch can be registered only once in a process, and code once imported is the same for all.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.util
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch
from tests.mutants.mutate import SOURCES, Mutant

from polyattn.registry import Entry, discover
from polyattn.spec import OperationSpec, VariantSpec
from polyattn.testing import Status, subjects_of
from polyattn.testing.planned import Check
from polyattn.testing.runner import checks_of, run_check

PLUGIN = SOURCES.name
PATIENCE = 20.0
"""Seconds that one check may take."""
MEMORY = 24 << 30
"""Bytes of addresses that a mutant may have: one that asks for more must not end the machine."""


@dataclass(frozen=True)
class Outcome:
    """How a mutant ended.

    what: "killed": a check failed; "hung", "crashed"; "survived"; "error": a check of the suite
        raised, which tells the author less than a failure; "stillborn": it could not be imported.
    by: ``name:check`` that it ended in. passed: seconds of each check that it passed.
    """

    what: str
    by: str = ""
    passed: Mapping[str, float] | None = None


class Replaced(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives one module other code than that of its file."""

    def __init__(self, name: str, path: Path, code: CodeType) -> None:
        self.name, self.path, self.code = name, path, code

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self.name:
            return None
        return importlib.util.spec_from_file_location(name, self.path, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        exec(self.code, module.__dict__)


def module_of(path: Path) -> str:
    return f"{PLUGIN}.{path.stem}"


def names_for(path: Path) -> list[str]:
    """The registered names whose code lives in a file or in what imports it.

    Members of an operation are run under their own names; the operation, where its config lives.
    """
    registry = discover()
    entries = [registry.find(name) for name in (*registry.variants, *registry.operations)]
    return [entry.name for entry in entries if module_of(path) in _modules(entry)]


def _modules(entry: Entry) -> set[str]:
    if isinstance(entry.spec, OperationSpec):
        return {entry.spec.config.partition(":")[0]}
    assert isinstance(entry.spec, VariantSpec)
    found: set[str] = set()
    waiting = [entry.spec.target.partition(":")[0]]
    while waiting:
        module = waiting.pop()
        if module.startswith(f"{PLUGIN}.") and module not in found:
            found.add(module)
            tree = ast.parse((SOURCES / f"{module.rpartition('.')[2]}.py").read_text())
            imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
            waiting += [node.module for node in imports if node.module]
    return found


def checks(names: Sequence[str]) -> Iterator[tuple[str, Check]]:
    """The checks of registered names, each under ``name:check``."""
    for name in names:
        for check in checks_of(subjects_of(name)):
            if check.withheld is None:
                yield f"{name}:{check.id}", check


def unimported() -> None:
    """Assert that no module of the built-in variants is here yet; torch works alone."""
    torch.set_num_threads(1)
    discover()
    here = [name for name in sys.modules if name.startswith(f"{PLUGIN}.")]
    assert not here, f"{here} were imported before the mutants were made; start anew"


def live(
    mutant: Mutant | None,
    names: Sequence[str],
    wanted: Callable[[str, Check], bool],
    rank: Callable[[str], float],
    limit: float,
) -> Outcome:
    """Run checks of names, wanted ones, highest rank first, until one fails, in a fork.

    mutant: None leaves the code as it is. limit: seconds for all of it.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            _child(writer, mutant, names, wanted, rank)
        finally:
            os._exit(0)
    os.close(writer)
    try:
        return _listen(reader, limit)
    finally:
        os.close(reader)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _child(
    writer: int,
    mutant: Mutant | None,
    names: Sequence[str],
    wanted: Callable[[str, Check], bool],
    rank: Callable[[str], float],
) -> None:
    def tell(**what: object) -> None:
        os.write(writer, json.dumps(what).encode() + b"\n")

    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if mutant is not None:
        module = module_of(mutant.path)
        sys.meta_path.insert(0, Replaced(module, mutant.path, mutant.code()))
        try:
            importlib.import_module(module)
        except BaseException as error:
            tell(what="stillborn", by=f"{type(error).__name__}")
            return
    found: list[tuple[str, Check]] = []
    for name in names:
        try:
            found += [pair for pair in checks([name]) if wanted(*pair)]
        except BaseException:
            # Its examples cannot be built: every way to use it says so.
            tell(what="killed", by=f"{name}:built")
            return
    passed: dict[str, float] = {}
    for key, check in sorted(found, key=lambda pair: -rank(pair[0])):
        tell(begins=key)
        result = run_check(check, patience=PATIENCE)
        if result.status in (Status.FAILED, Status.ERROR):
            late = result.failure is not None and "did not answer within" in result.reason
            ended = "killed" if result.status is Status.FAILED else "error"
            tell(what="hung" if late else ended, by=key)
            return
        passed[key] = round(result.seconds, 4)
    tell(what="survived", passed=passed)


def _listen(reader: int, limit: float) -> Outcome:
    """What the child says at last, or how it fell silent."""
    end, last, rest = time.monotonic() + limit, "", b""
    while True:
        ready, _, _ = select.select([reader], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            return Outcome("hung", last)
        read = os.read(reader, 1 << 20)
        if not read:
            return Outcome("crashed", last)
        *lines, rest = (rest + read).split(b"\n")
        for line in lines:
            said: dict[str, Any] = json.loads(line)
            if "what" in said:
                return Outcome(**said)
            last = said["begins"]
