"""`python -m aftercommit.contrib.telegram.local_api`: runs the local Bot API server until Ctrl-C."""

import asyncio
import signal

import click

from aftercommit.contrib.telegram.local_api.limits import BotApiLimits
from aftercommit.contrib.telegram.local_api.server import TOKEN, BotApiServer
from aftercommit.errors import AftercommitError


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=8091, show_default=True, help="0 picks a free port.")
@click.option("--token", default=TOKEN, show_default=True, help="Token of the bot.")
@click.option(
    "--burst", type=click.IntRange(0), default=0, show_default=True, help="Messages per minute above Telegram's limits."
)
def main(port: int, token: str, burst: int) -> None:
    """Run a local Bot API server with a page that shows the chats. They are kept in memory only."""
    try:
        server = BotApiServer(port=port, token=token, limits=BotApiLimits(burst=burst))
    except AftercommitError as problem:
        raise click.ClickException(str(problem)) from None
    click.echo(f"chats:  {server.url}\nbot:    AFTERCOMMIT_BOT_API={server.url} AFTERCOMMIT_BOT_TOKEN={token}")
    asyncio.run(_serve(server))


async def _serve(server: BotApiServer) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, server.stopping.set)
    async with server:
        await server.stopping.wait()


if __name__ == "__main__":
    main()
