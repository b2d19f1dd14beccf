"""What the guide says is so: its variables, options, commands and log lines exist, and its examples can be read."""

import re
from pathlib import Path

from aftercommit.cli.bot import bot
from aftercommit.contrib.telegram import bot_settings
from aftercommit.contrib.telegram.commands import COMMANDS
from aftercommit.contrib.telegram.settings import VARIABLES

REPOSITORY = Path(__file__).parents[2]
GUIDE = (REPOSITORY / "docs" / "guides" / "telegram.md").read_text(encoding="utf-8")
CODE = REPOSITORY / "src" / "aftercommit"
SOURCE = "".join(
    path.read_text(encoding="utf-8")
    for path in [*(CODE / "contrib" / "telegram").rglob("*.py"), CODE / "cli" / "bot.py"]
)


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)


def test_every_variable_and_option_is_in_the_table_and_no_other():
    rows = re.findall(r"^\| (?:`(AFTERCOMMIT_BOT_\w+)`)? \| `(--[a-z-]+)", GUIDE, re.MULTILINE)
    assert {variable for variable, _ in rows if variable} == set(VARIABLES.values())
    known = {option for parameter in bot.params for option in parameter.opts}
    assert {option for _, option in rows} <= known
    assert {f"--{name.replace('_', '-')}" for name in VARIABLES} <= {option for _, option in rows}


def test_every_command_of_the_bot_is_explained():
    for command in COMMANDS:
        assert f"`/{command}" in GUIDE or f", /{command}" in GUIDE, command


def test_the_commands_for_operators_exist():
    named = set(re.findall(r"aftercommit bot ([a-z]+)", GUIDE))
    assert named <= set(bot.commands)
    assert {"status", "links", "failures", "unlink", "code"} <= named


def test_the_log_lines_are_those_of_the_code():
    said = set(re.findall(r'logging\.[A-Z]+, "(bot_[a-z_]+)"', SOURCE))
    listed = {
        name for cell in re.findall(r"^\| (`bot_.*?) \|", GUIDE, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)
    }
    assert listed == said


def test_the_configuration_of_the_guide_is_one(tmp_path: Path):
    path = tmp_path / "bot.toml"
    path.write_text(blocks("toml")[0])
    settings = bot_settings(config=path, environment={"AFTERCOMMIT_BOT_TOKEN": "1:x"})
    item = {"event_id": "a", "message": "it burns", "service": "shop", "level": "ERROR"}
    assert settings.texts.event("en", "ERROR", item) == (
        '🔥 <a href="https://logs.example/investigations#a">it burns</a>\nshop'
    )
    assert settings.texts.message("fr", "hello").startswith("Bonjour")


def test_the_program_of_the_guide_can_be_compiled():
    namespace: dict[str, object] = {}
    exec(compile(blocks("python")[0], "telegram.md", "exec"), namespace)  # noqa: S102 - our own page
    assert callable(namespace["serve"])
