"""The commands and their options, by typer; each command is imported only when it is asked for."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from typing import Annotated, Any

import typer
import typer.core

from polyattn.cli.main import block_plugins
from polyattn.errors import suggestion

COMMANDS: Mapping[str, str] = {
    "list": "polyattn.cli.app:list_command",
    "show": "polyattn.cli.show:show",
    "explain": "polyattn.cli.explain:explain",
    "check": "polyattn.cli.check:check",
    "compare": "polyattn.cli.compare:compare",
    "new": "polyattn.cli.new:new",
}
"""Each command and the function behind it. One whose module is not there is not offered."""


class Commands(typer.core.TyperGroup):
    """A group that imports a command's module when the command is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name, target in COMMANDS.items() if _exists(target)]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        known = self.list_commands(ctx)
        if args and args[0] not in known:
            ctx.fail(
                f"no command {args[0]!r}{suggestion(args[0], known)}; known: {', '.join(known)}"
            )
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.list_commands(ctx):
            return None
        module, _, function = COMMANDS[cmd_name].partition(":")
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(cmd_name)(getattr(importlib.import_module(module), function))
        return typer.main.get_command(single)


def _exists(target: str) -> bool:
    return importlib.util.find_spec(target.partition(":")[0]) is not None


app = typer.Typer(
    cls=Commands,
    name="polyattn",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def options(
    no_plugins: Annotated[
        bool,
        typer.Option("--no-plugins", help="Run no hook of any other package than polyattn."),
    ] = False,
) -> None:
    """Attention variants: found among plugins, proven by one suite, measured side by side.

    Every command runs the hooks of the installed plugins, to learn their names.
    """
    if no_plugins:
        block_plugins()


def list_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print data, not a table.")] = False,
) -> None:
    """List variants, operations and presets, and the plugins that failed."""
    from polyattn.cli.list import list_names

    list_names(as_json=as_json)
