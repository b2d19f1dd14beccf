"""`aftercommit dead` and `aftercommit replay`: what they print where, what they ask, and their exit status."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from aftercommit.cli import cli
from aftercommit.operate import Operation, Repair, Selection
from tests.support.consuming import letters, numbered, place_in_log
from tests.support.programs import CLEANED, running
from tests.support.repairing import Fragile, desk
from tests.support.shop import Shop

pytestmark = pytest.mark.newest

APP = "tests.support.shop_app:outbox"
CONSUMER = "order-index"


@pytest.fixture(autouse=True)
def shop_as_database(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shop: Shop) -> None:
    """The shop's database is the one that commands find."""
    for name in CLEANED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AFTERCOMMIT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DATABASE_URL", shop.dsn)


@pytest.fixture
def parked(shop: Shop) -> list[str]:
    """Five events, of which a log consumer has parked two; returns their ids."""

    async def work() -> None:
        fragile = Fragile(shop, 1, 3, name=CONSUMER)
        place_in_log(shop, *numbered(5))
        await fragile.work()

    asyncio.run(work())
    return [str(event_id) for (event_id,) in letters(shop, "event_id")]


def run(*arguments: str, status: int = 0, **options: Any) -> Result:
    result = CliRunner().invoke(cli, arguments, **options)
    assert result.exit_code == status, result.output
    assert "\x1b" not in result.output, "piped output has no colours"
    return result


def test_an_outbox_without_letters_says_so_on_stderr_alone(shop: Shop) -> None:
    for command in ("list", "groups"):
        result = run("dead", command)
        assert (result.stdout.splitlines()[1:], result.stderr) == ([], "no dead letters\n")
    assert run("replay", "list").stderr == "no replays\n"


def test_letters_are_listed_in_plain_columns_without_payloads(shop: Shop, parked: list[str]) -> None:
    result = run("dead", "list", "--consumer", CONSUMER, "--limit", "1")

    header, row = result.stdout.splitlines()
    assert header.split()[:3] == ["event_id", "consumer", "status"]
    assert row.startswith(f"{parked[1]}  {CONSUMER}  parked")
    assert row.endswith("ValueError: order 3 is bad")
    assert "1 of 2 letters" in result.stderr
    assert "o-1" in row
    assert '"number"' not in result.output

    document = json.loads(run("dead", "list", "--json").stdout)
    assert document["total"] == 2
    assert {letter["event_id"] for letter in document["letters"]} == set(parked)
    assert "payload" not in document["letters"][0]


def test_groups_and_show(shop: Shop, parked: list[str]) -> None:
    (group,) = json.loads(run("dead", "groups", "--json").stdout)
    assert (group["count"], group["error"]) == (2, "order # is bad")
    assert "order # is bad" in run("dead", "groups").stdout

    shown = run("dead", "show", parked[0]).stdout
    assert '"number":1' in shown.replace(" ", "")
    assert "scope         tenant_id=acme" in shown
    assert "ValueError: order 1 is bad" in shown
    (document,) = json.loads(run("dead", "show", parked[0], "--json").stdout)
    assert len(document["history"]) == 1


def test_a_retry_asks_with_the_count_and_does_nothing_when_told_no(shop: Shop, parked: list[str]) -> None:
    refused = run("dead", "retry", "--consumer", CONSUMER, input="n\n", status=1)
    assert "Retry 2 letters (consumer=order-index)?" in refused.stderr
    assert "2 letters would be retried" in run("dead", "retry", "--consumer", CONSUMER, "--dry-run").stderr
    assert letters(shop, "status") == [("parked",), ("parked",)]

    done = run("dead", "retry", parked[0], "--yes", "--json", "--reason", "mended", "--by", "ann")
    assert json.loads(done.stdout)["done"] == 1
    assert letters(shop, "status") == [("retrying",), ("parked",)]
    (operation,) = json.loads(run("replay", "list", "--all", "--json").stdout)
    assert (operation["kind"], operation["requested_by"], operation["reason"]) == ("retry", "ann", "mended")


def test_a_discard_needs_a_reason(shop: Shop, parked: list[str]) -> None:
    assert "--reason" in run("dead", "discard", parked[0], "--yes", status=1).stderr
    assert run("dead", "discard", parked[0], "--yes", "--reason", "a test").stderr == "1 letter discarded\n"
    assert letters(shop, "status") == [("discarded",), ("parked",)]


def test_an_edit_takes_the_payload_from_a_file_or_the_editor(
    shop: Shop, parked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = tmp_path / "wrong.json"
    wrong.write_text('{"number": 1}')
    refused = run("dead", "edit", parked[0], "--payload", str(wrong), "--app", APP, status=1)
    assert "order_id" in refused.stderr

    given = '{"order_id": "o-1", "number": 10, "note": ""}'
    monkeypatch.setenv("EDITOR", "true")
    assert run("dead", "edit", parked[1], status=1).stderr == "nothing was changed\n"
    run("dead", "edit", parked[0], "--payload", "-", "--app", APP, "--yes", input=given)
    # Indented for the eye, and stored as it came.
    monkeypatch.setenv("EDITOR", """sed -i 's/^  "number": 3/  "number": 30/'""")
    run("dead", "edit", parked[1], "--reason", "typo", "--yes")
    assert shop.value("select payload::text like '{\"%%' from dead_letter_events where event_id = %s", (parked[1],))

    assert letters(shop, "status, (payload->>'number')::int") == [("retrying", 10), ("retrying", 30)]


def test_an_edit_asks_and_can_be_tried_first(shop: Shop, parked: list[str], tmp_path: Path) -> None:
    new = tmp_path / "new.json"
    new.write_text('{"order_id": "o-1", "number": 10, "note": ""}')
    edit = ("dead", "edit", parked[0], "--payload", str(new))

    refused = run(*edit, input="n\n", status=1)
    assert f"Edit the payload of event {parked[0]} and retry it?" in refused.stderr
    assert run(*edit, "--dry-run").stderr == "1 letter would be edited and retried\n"
    assert letters(shop, "status, (payload->>'number')::int") == [("parked", 1), ("parked", 3)]
    assert "give --yes as well" in run("dead", "edit", parked[0], "--payload", "-", input="{}", status=2).stderr
    assert "does not exist" in run("dead", "edit", parked[0], "--payload", "nofile.json", status=2).stderr

    said = run(*edit, input="y\n").stderr
    assert "1 letter edited, will be retried" in said
    assert f"consumer '{CONSUMER}' has no worker" in said
    assert letters(shop, "status, (payload->>'number')::int") == [("retrying", 10), ("parked", 3)]


def test_what_was_typed_into_the_editor_is_not_lost_when_it_is_refused(
    shop: Shop, parked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDITOR", "sed -i s/}/,/")
    refused = run("dead", "edit", parked[0], status=1)
    assert "the new payload is not JSON" in refused.stderr
    (kept,) = re.findall(r"is saved in (\S+\.json)", refused.stderr)
    assert Path(kept).read_text().rstrip().endswith(",")
    Path(kept).unlink()

    # The first time a brace is lost, the second time it is there again.
    monkeypatch.setenv("EDITOR", """sed -i -e 's/}/,/;t' -e '$ s/,$/}/;t' -e 's/"number": 1,/"number": 10,/'""")
    corrected = run("dead", "edit", parked[0], "--yes", "--app", APP, input="y\n", status=0)
    assert "Open the editor again?" in corrected.stderr
    assert letters(shop, "status, (payload->>'number')::int") == [("retrying", 10), ("parked", 3)]


def test_a_consumer_that_nobody_knows_is_refused(shop: Shop, parked: list[str]) -> None:
    for command in (("list",), ("groups",), ("retry", "--yes"), ("discard", "--yes", "--reason", "x")):
        refused = run("dead", *command, "--consumer", "oder-index", status=1)
        assert f"unknown consumer 'oder-index'. Known consumers: @relay, {CONSUMER}" in refused.stderr
    assert run("dead", "list", "--consumer", "@relay").stderr == "no dead letters match (consumer=@relay)\n"


def test_an_action_that_nothing_matched_says_so_and_is_partial(shop: Shop, parked: list[str]) -> None:
    for command in (("retry",), ("discard", "--reason", "x")):
        said = run("dead", *command, "--yes", "--error", "nothing like it", status=4).stderr
        assert said == "no parked letters match (error=nothing like it): use --status to choose others\n"
    run("dead", "retry", "--consumer", CONSUMER, "--yes")
    assert "no parked letters match" in run("dead", "retry", "--consumer", CONSUMER, "--yes", status=4).stderr


def test_a_retry_says_what_it_waits_for_and_attempts_count_on(shop: Shop, parked: list[str]) -> None:
    said = run("dead", "retry", "--consumer", CONSUMER, "--yes").stderr
    assert said.splitlines() == [
        "2 letters will be retried",
        f"consumer '{CONSUMER}' has no worker: start `aftercommit worker {CONSUMER} --app module:outbox`",
    ]
    assert "1 attempt" in run("dead", "show", parked[0]).stdout
    (letter, _) = json.loads(run("dead", "list", "--json").stdout)["letters"]
    assert (letter["attempts"], letter["failures"]) == (1, 1)


def test_groups_count_letters_that_only_wait_and_show_no_cause_for_them(shop: Shop) -> None:
    async def work() -> None:
        fragile = Fragile(shop, 1, name=CONSUMER, ordering="strict")
        place_in_log(shop, *numbered(4))
        await fragile.work()

    asyncio.run(work())
    result = run("dead", "groups")
    assert len(result.stdout.splitlines()) == 2
    assert result.stderr == "2 letters wait behind these in strict order: list with --status waiting\n"
    assert "WaitsBehind" in run("dead", "groups", "--status", "waiting").stdout


def test_a_replay_is_previewed_driven_and_shown(shop: Shop, parked: list[str]) -> None:
    preview = run("replay", "start", "--to", CONSUMER, "--from-position", "1", "--dry-run")
    assert preview.stderr.splitlines()[0] == f"5 items to consumer '{CONSUMER}': from_position=1"
    assert "3  of them were handled already and will be skipped" in preview.stderr
    assert json.loads(run("replay", "start", "--consumer", CONSUMER, "--dry-run", "--json").stdout)["total"] == 2
    assert shop.value("select count(*) from operation") == 0

    with running("worker", "--app", APP, DATABASE_URL=shop.dsn):
        done = run("replay", "start", "--to", CONSUMER, "--from-position", "1", "--yes", "--rate", "1000", "--json")
    operation = json.loads(done.stdout)
    assert (operation["status"], operation["done"], operation["skipped"]) == ("done", 2, 3)

    assert "was handled already" in run("replay", "show", operation["id"]).stdout
    assert operation["id"] in run("replay", "list").stdout
    assert "done: 2 done, 3 skipped" in run("replay", "watch", operation["id"]).stderr
    run("replay", "resume", operation["id"])


def park_another(shop: Shop) -> None:
    """A letter more than there were."""
    (event_id,) = place_in_log(shop, ("o-9", 9))
    shop.rows(
        "insert into dead_letter_events (event_id, consumer_name, status, event_type, schema_version, aggregate_type, "
        "aggregate_id, occurred_at, correlation_id, payload, seq, position, created_at, error, error_class, attempts, "
        "tenant_id) select id, %s, 'parked', event_type, schema_version, aggregate_type, aggregate_id, occurred_at, "
        "correlation_id, payload, seq, position, created_at, 'down', 'Down', 1, tenant_id from log where id = %s",
        (CONSUMER, event_id),
    )


def test_a_replay_asks_again_when_its_set_has_changed_since_it_was_counted(
    shop: Shop, parked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def confirm(text: str, **options: Any) -> bool:
        asked.append(text)
        if len(asked) > 1:
            raise click.Abort
        park_another(shop)
        return True

    monkeypatch.setattr(click, "confirm", confirm)
    result = run("replay", "start", "--consumer", CONSUMER, status=1)
    assert asked == ["Replay 2 items?", "Replay 3 items?"]
    assert "the selection had 2 items when it was counted, and has 3 now" in result.stderr
    assert shop.value("select count(*) from operation") == 0


def test_a_replay_that_is_not_to_ask_says_both_numbers_and_goes_on(
    shop: Shop, parked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Repair.start

    async def start(self: Repair, *arguments: Any, **options: Any) -> Operation:
        if options["expected"] == 2:
            park_another(shop)
        return await begin(self, *arguments, **options)

    monkeypatch.setattr(Repair, "start", start)
    with running("worker", "--app", APP, DATABASE_URL=shop.dsn):
        result = run("replay", "start", "--consumer", CONSUMER, "--yes", "--json")
    assert "the selection had 2 items when it was counted, and has 3 now" in result.stderr
    assert json.loads(result.stdout)["total"] == 3


def test_an_aborted_replay_is_partial(shop: Shop, parked: list[str]) -> None:
    operation = asyncio.run(desk(shop, declared=False).start(Selection(consumer=CONSUMER)))

    aborted = run("replay", "abort", str(operation.id), "--json", status=4)

    assert json.loads(aborted.stdout)["status"] == "aborted"
    assert letters(shop, "status") == [("parked",), ("parked",)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("dead", "list", "--since", "yesterday"), "is not a time"),
        (("dead", "list", "--scope", "acme"), "NAME=VALUE"),
        (("dead", "show", "17"), "UUID"),
        (("replay", "start", "--since", "1h", "--until", "2h", "--to", "x"), "must be before"),
        (("replay", "start", "--to", "x", "--through-transport"), "exclude each other"),
    ],
)
def test_wrong_usage_is_said_and_is_status_two(shop: Shop, arguments: tuple[str, ...], said: str) -> None:
    assert said in run(*arguments, status=2).stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("replay", "start", "--from-position", "1"), "--to NAME, --through-transport"),
        (("replay", "start", "--from-position", "1", "--to", "nobody"), "unknown consumer 'nobody'"),
        (("replay", "show", "00000000-0000-0000-0000-000000000000"), "no operation"),
        (("dead", "list", "--scope", "user=1"), "it has tenant_id"),
        (("dead", "retry", "--yes"), "--status parked"),
    ],
)
def test_what_cannot_be_done_is_one_line(shop: Shop, arguments: tuple[str, ...], said: str) -> None:
    result = run(*arguments, status=1)
    assert said in result.stderr
    assert result.stdout == ""
