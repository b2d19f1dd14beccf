"""`aftercommit version`: the installed versions, for bug reports."""

import platform
from importlib.metadata import version as installed_version

import click
import psycopg

from aftercommit._version import __version__
from aftercommit.cli.options import as_json, pass_settings
from aftercommit.cli.output import print_fields, print_json
from aftercommit.schema.migrate import migrations
from aftercommit.settings import Settings


@click.command()
@as_json
@pass_settings
def version(settings: Settings, as_json: bool) -> None:
    """Print the versions of aftercommit, Python, psycopg and the platform."""
    found = {
        "aftercommit": __version__,
        "migration": str(migrations()[-1]),
        "python": platform.python_version(),
        "psycopg": installed_version("psycopg"),
        "libpq": psycopg.pq.version_pretty(psycopg.pq.version()),
        "platform": platform.platform(),
    }
    if as_json:
        print_json(found)
        return
    print_fields(found)
