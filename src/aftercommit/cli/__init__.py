"""The command line: one module per group of commands. It parses, calls other packages and prints.

Data goes to stdout and everything else to stderr. Exit status: 0 done, 1 failed, 2 wrong usage, 3 the schema does not
match the code or `status` or `doctor` found a problem, 4 only a part was done, 130 interrupted.
"""

import traceback
from typing import Any

import click
import psycopg

from aftercommit._version import __version__
from aftercommit.cli.bot import bot
from aftercommit.cli.consumers import consumers
from aftercommit.cli.dead import dead
from aftercommit.cli.doctor import doctor
from aftercommit.cli.exits import FAILED, INTERRUPTED, NOT_AS_IT_SHOULD_BE, PARTIAL
from aftercommit.cli.migrate import migrate
from aftercommit.cli.options import Given, global_options
from aftercommit.cli.output import message, printable
from aftercommit.cli.relay import relay
from aftercommit.cli.replay import replay
from aftercommit.cli.restored import restored
from aftercommit.cli.serve import serve
from aftercommit.cli.status import status
from aftercommit.cli.sweep import sweep
from aftercommit.cli.token import token
from aftercommit.cli.up import up
from aftercommit.cli.version import version
from aftercommit.cli.worker import worker
from aftercommit.errors import AftercommitError, LetterNotFound, SchemaDrift, SchemaNotMigrated, SchemaTooNew
from aftercommit.event.json_rules import text_problem
from aftercommit.postgres.database import read_only
from aftercommit.postgres.resilience import GONE, tables_gone

_DRIFT = (SchemaNotMigrated, SchemaTooNew, SchemaDrift)


def _status_of(problem: AftercommitError) -> int:
    if isinstance(problem, LetterNotFound):
        return PARTIAL
    return NOT_AS_IT_SHOULD_BE if isinstance(problem, _DRIFT) else FAILED


class _Root(click.Group):
    """Turns expected errors into one line and an exit status; --verbose adds the traceback."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse arguments that are not valid text, so that commands can store, send and show them."""
        for argument in args:
            if text_problem(argument) is not None:
                # An address may contain a password.
                shown = "the address of the database" if "://" in argument else f"{argument!r:.100}"
                raise click.UsageError(f"{shown} is not valid UTF-8 text, or contains NUL. Write it in UTF-8", ctx)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except AftercommitError as problem:
            self._explain(ctx, problem)
            ctx.exit(_status_of(problem))
        except psycopg.errors.ReadOnlySqlTransaction as problem:
            self._explain(ctx, read_only(problem))
            ctx.exit(FAILED)
        except GONE as problem:
            self._explain(ctx, tables_gone(problem))
            ctx.exit(NOT_AS_IT_SHOULD_BE)
        except (psycopg.OperationalError, psycopg.errors.InsufficientPrivilege) as problem:
            self._explain(ctx, problem)
            ctx.exit(FAILED)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)

    def _explain(self, ctx: click.Context, problem: Exception) -> None:
        given = ctx.find_object(Given)
        if given is not None and given.settings.verbose:
            message(printable("".join(traceback.format_exception(problem))).rstrip())
        message(f"error: {printable(str(problem)).strip()}")


@click.group(cls=_Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="aftercommit", message="%(prog)s %(version)s")
@global_options
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Transactional outbox, ordered event log and live feeds for PostgreSQL."""
    ctx.obj = ctx.ensure_object(Given)


COMMANDS = (up, migrate, relay, worker, serve, consumers, dead, replay, restored, status, sweep, token, bot, doctor)
for command in (*COMMANDS, version):
    cli.add_command(command)


def main() -> None:
    """The entry point of the `aftercommit` program."""
    cli(prog_name="aftercommit")


__all__ = ["cli", "main"]
