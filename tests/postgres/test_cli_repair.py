"""What `dead` and `replay` say when they are asked for something that is not there, too much, or interrupted."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from click.testing import CliRunner, Result

from aftercommit.cli import cli
from aftercommit.errors import RepairError
from aftercommit.operate import Selection
from tests.support.consuming import letters, numbered, place_in_log
from tests.support.programs import CLEANED, running
from tests.support.repairing import Fragile, desk
from tests.support.shop import Shop

pytestmark = pytest.mark.newest

APP = "tests.support.shop_app:outbox"
CONSUMER = "order-index"
LARGE = 99999999999999999999
NO_TERMINAL = "error: cannot ask for confirmation, because stdin is not a terminal: give"


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
    assert result.exit_code == status, (result.output, result.exception)
    return result


class TestPages:
    def test_behind_the_last_letter_the_total_is_still_the_total(self, parked: list[str]) -> None:
        page = {"letters": [], "total": 2, "is_exact": True, "looked_at": None}
        assert json.loads(run("dead", "list", "--offset", "5", "--json").stdout) == page
        shown = run("dead", "list", "--offset", "5")
        assert shown.stderr == "0 of 2 letters: use --limit and --offset to see others\n"
        assert run("dead", "list", "--offset", "1").stderr == "1 of 2 letters: use --limit and --offset to see others\n"

    @pytest.mark.parametrize("limit", [0, -1, LARGE, True, 1.5, "10"])
    async def test_limits_that_cannot_be_counted_are_refused_in_python_too(self, shop: Shop, limit: Any) -> None:
        asked = desk(shop)
        for ask in (asked.letters, asked.groups, asked.operations):
            with pytest.raises(RepairError, match=f"limit={limit!r} must be an integer from 1"):
                await ask(limit=limit)
        with pytest.raises(RepairError, match="limit="):
            await asked.problems(uuid4(), limit=limit)

    @pytest.mark.parametrize("offset", [-1, LARGE])
    async def test_offsets_that_cannot_be_counted_are_refused_in_python_too(self, shop: Shop, offset: int) -> None:
        with pytest.raises(RepairError, match=f"offset={offset} must be an integer from 0"):
            await desk(shop).letters(offset=offset)


class TestUnknownEvents:
    def test_an_event_without_a_letter_is_named_and_the_others_are_dealt_with(self, parked: list[str]) -> None:
        unknown = str(uuid4())
        done = run("dead", "retry", parked[0], unknown, "--yes", status=4)
        assert "1 letter will be retried" in done.stderr
        assert f"unchanged: {unknown}: no dead letter: see `aftercommit dead list`" in done.stderr

    @pytest.mark.parametrize("verb", ["retry", "discard"])
    @pytest.mark.thorough
    def test_an_unknown_event_alone_is_partial_and_says_why(self, parked: list[str], verb: str) -> None:
        unknown = str(uuid4())
        said = run("dead", verb, unknown, "--yes", "--reason", "x", status=4).stderr
        assert said.startswith(f"unchanged: {unknown}: no dead letter: ")
        document = json.loads(run("dead", verb, unknown, "--yes", "--reason", "x", "--json", status=4).stdout)
        assert (document["done"], [each["event_id"] for each in document["not_found"]]) == (0, [unknown])

    def test_a_letter_that_is_resolved_says_so(self, shop: Shop, parked: list[str]) -> None:
        shop.rows("update dead_letter_events set status = 'resolved' where event_id = %s", [parked[0]])
        said = run("dead", "retry", parked[0], "--yes", status=4).stderr
        assert said == f"unchanged: {parked[0]}: its dead letter is already resolved\n"
        other = run("dead", "retry", parked[1], "--type", "order.paid", "--yes", status=4).stderr
        assert "no dead letter that matches" in other

    def test_many_of_them_are_counted_and_listed_by_json(self, parked: list[str]) -> None:
        unknown = [str(uuid4()) for _ in range(8)]
        said = run("dead", "retry", *unknown, "--yes", status=4).stderr.splitlines()
        assert len(said) == 6
        assert said[-1] == "unchanged: 3 more, use --json to list them"

    def test_a_replay_of_nothing_says_so_and_is_partial(self, shop: Shop, parked: list[str]) -> None:
        unknown = str(uuid4())
        said = run("replay", "start", unknown, "--to", CONSUMER, "--yes", status=4).stderr
        assert f"nothing to replay: no event or dead letter matches (event_ids={unknown})" in said
        assert "1 named event is left out: not in the log" in said
        assert json.loads(run("replay", "start", unknown, "--to", CONSUMER, "--json", status=4).stdout)["total"] == 0
        assert shop.value("select count(*) from operation") == 0

    def test_a_replay_says_how_many_of_the_named_events_it_leaves_out(self, parked: list[str]) -> None:
        said = run("replay", "start", parked[0], str(uuid4()), "--to", CONSUMER, "--dry-run").stderr
        assert "1 named event is left out" in said


class TestOperations:
    def test_problems_that_are_not_shown_are_counted_with_the_way_to_see_them(self, shop: Shop) -> None:
        async def work() -> UUID:
            fragile = Fragile(shop, name=CONSUMER)
            place_in_log(shop, *numbered(25))
            await fragile.work()
            operation = await desk(shop).start(Selection(from_position=1), to=CONSUMER)
            return (await desk(shop).drive(operation.id)).id

        operation = str(asyncio.run(work()))
        shown = run("replay", "show", operation)
        assert shown.stdout.count("was handled already") == 20
        assert shown.stderr == "5 more problems not shown: use --limit 25 to see all\n"
        assert json.loads(run("replay", "show", operation, "--json").stdout)["problems_not_shown"] == 5
        whole = run("replay", "show", operation, "--limit", "25")
        assert (whole.stdout.count("was handled already"), whole.stderr) == (25, "")

    @pytest.mark.thorough
    def test_a_replay_that_is_interrupted_prints_its_document(self, shop: Shop, parked: list[str]) -> None:
        start = ("replay", "start", "--consumer", CONSUMER, "--yes", "--json")
        with running(*start, DATABASE_URL=shop.dsn) as program:
            program.line("has no worker", program.stderr)
            program.send(signal.SIGINT)
            assert program.ends() == 130
        document = json.loads("".join(program.stdout))
        assert (document["status"], document["total"], document["done"]) == ("running", 2, 0)
        assert [str(row[0]) for row in shop.rows("select id from operation")] == [document["id"]]

    @pytest.mark.thorough
    def test_a_replay_that_nobody_works_on_says_that_it_waits_and_how_to_leave_it(
        self, shop: Shop, parked: list[str]
    ) -> None:
        with running("replay", "start", "--consumer", CONSUMER, "--yes", DATABASE_URL=shop.dsn) as program:
            waits = program.line("the replay is waiting for that", program.stderr)
            program.send(signal.SIGINT)
            assert program.ends() == 130
        ((operation,),) = shop.rows("select id from operation")
        assert f"Ctrl-C stops it here; `aftercommit replay resume {operation}` continues" in waits

    @pytest.mark.thorough
    def test_without_json_it_says_how_to_go_on(self, shop: Shop, parked: list[str]) -> None:
        with running("replay", "start", "--consumer", CONSUMER, "--yes", DATABASE_URL=shop.dsn) as program:
            program.line("has no worker", program.stderr)
            program.send(signal.SIGTERM)
            assert program.ends() == 130
        assert program.stdout == []
        assert "continue with" in program.line("stopped at 0 done, 0 skipped, 0 failed", program.stderr)


class TestEdit:
    def edit(self, event_id: str, payload: bytes, *arguments: str, status: int = 1) -> str:
        result = run("dead", "edit", event_id, "--payload", "-", "--yes", *arguments, input=payload, status=status)
        return result.stderr

    @pytest.mark.parametrize("app", [(), ("--app", APP)])
    def test_a_key_that_is_there_twice_is_refused(self, parked: list[str], app: tuple[str, ...]) -> None:
        payload = b'{"order_id": "o-1", "number": 1, "number": 2}'
        assert "the key 'number' twice in one object: keep one of them" in self.edit(parked[0], payload, *app)
        nested = b'{"order_id": "o-1", "note": {"a": [{"b": 1, "b": 2}]}}'
        assert "the key 'b' twice" in self.edit(parked[0], nested, *app)

    def test_a_key_that_the_type_does_not_read_is_refused_by_name(self, shop: Shop, parked: list[str]) -> None:
        payload = b'{"order_id": "o-1", "number": 1, "nubmer": 2}'
        said = self.edit(parked[0], payload, "--app", APP)
        assert "has the key 'nubmer', which order.placed does not read: use note, number, order_id" in said
        # Without the declaration nobody knows what is read.
        self.edit(parked[0], payload, status=0)

    def test_a_key_that_the_payload_had_before_may_stay(self, shop: Shop, parked: list[str]) -> None:
        payload = '{"order_id": "o-1", "number": 1, "former": 2}'
        shop.rows("update dead_letter_events set payload = %s where event_id = %s", [payload, parked[0]])
        self.edit(parked[0], payload.replace("1,", "10,").encode(), "--app", APP, status=0)
        assert shop.value("select payload->>'number' from dead_letter_events where event_id = %s", [parked[0]]) == "10"

    @pytest.mark.parametrize("app", [(), ("--app", APP)])
    def test_a_payload_over_the_limit_is_refused_with_both_numbers(
        self, parked: list[str], app: tuple[str, ...]
    ) -> None:
        payload = json.dumps({"order_id": "o-1", "note": "x" * (1 << 20)}).encode()
        said = self.edit(parked[0], payload, *app)
        assert f"the new payload has {len(payload):,} bytes, and the limit is 1,048,576" in said

    def test_what_was_published_under_a_higher_limit_can_be_edited(self, shop: Shop, parked: list[str]) -> None:
        large = json.dumps({"order_id": "o-1", "number": 1, "note": "x" * (2 << 20)})
        shop.rows("update dead_letter_events set payload = %s where event_id = %s", [large, parked[0]])
        self.edit(parked[0], large.replace("xx", "yy").encode(), status=0)

    def test_nesting_hidden_behind_a_double_key_is_refused(self, parked: list[str]) -> None:
        deep = b'{"order_id": "o-1", "note": ' + b"[" * 900 + b"]" * 900 + b', "note": ""}'
        assert "Traceback" not in self.edit(parked[0], deep)

    def test_an_editor_that_saves_something_else_than_utf8_loses_nothing(
        self, parked: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        editor = tmp_path / "editor"
        editor.write_text('#!/bin/sh\nprintf \'{"order_id": "o-1", "note": "\\377"}\' > "$1"\n')
        editor.chmod(0o755)
        monkeypatch.setenv("EDITOR", str(editor))
        said = run("dead", "edit", parked[0], "--yes", status=1).stderr
        assert "did not save UTF-8 (invalid start byte at byte 29)" in said
        kept = Path(said.partition("Your text is in ")[2].partition(": ")[0])
        assert b"\xff" in kept.read_bytes()
        kept.unlink()


class TestQuestions:
    ASKING = (
        ("dead", "retry", "--status", "parked"),
        ("dead", "discard", "--status", "parked", "--reason", "x"),
        ("replay", "start", "--status", "parked"),
        ("consumers", "seek", CONSUMER, "--to", "start"),
    )

    @pytest.mark.parametrize("command", ASKING)
    @pytest.mark.thorough
    def test_where_nobody_can_be_asked_it_says_what_to_say(self, shop: Shop, command: Any, parked: list[str]) -> None:
        for more in ((), ("--json",)):
            result = run(*command, *more, status=1)
            assert result.stderr.splitlines()[-1] == f"{NO_TERMINAL} --yes or --dry-run"
        assert shop.value("select count(*) from operation") == 0

    @pytest.mark.parametrize("command", ASKING)
    @pytest.mark.thorough
    def test_a_no_changes_nothing_and_says_so(self, shop: Shop, command: Any, parked: list[str]) -> None:
        result = run(*command, status=1, input="n\n")
        assert result.stderr.splitlines()[-1] == "nothing was changed"
        assert shop.value("select count(*) from operation") == 0

    def test_what_has_no_dry_run_does_not_propose_one(self, parked: list[str]) -> None:
        said = run("consumers", "forget", CONSUMER, status=1).stderr
        assert said.splitlines()[-1] == f"{NO_TERMINAL} --yes"


class TestLettersThatAreNotThere:
    @pytest.mark.parametrize("command", [["show"], ["edit", "--payload", "-", "--yes"]])
    @pytest.mark.thorough
    def test_an_unknown_event_is_status_4(self, parked: list[str], command: list[str]) -> None:
        unknown = str(uuid4())
        said = run("dead", command[0], unknown, *command[1:], status=4, input="{}").stderr
        assert said == f"error: event {unknown} has no dead letter: see `aftercommit dead list`\n"

    def test_a_letter_under_way_is_status_4(self, shop: Shop, parked: list[str]) -> None:
        run("dead", "retry", parked[0], "--yes")
        said = run("dead", "edit", parked[0], "--payload", "-", "--yes", status=4, input="{}").stderr
        assert "is retrying: only parked and discarded letters can be edited" in said

    @pytest.mark.thorough
    def test_a_replay_of_no_parked_letter_says_which_others_match(self, shop: Shop, parked: list[str]) -> None:
        run("dead", "retry", parked[0], "--yes")
        run("dead", "discard", parked[1], "--yes", "--reason", "x")
        said = run("replay", "start", "--consumer", CONSUMER, "--yes", status=4).stderr
        assert said == (
            f"nothing to replay: no parked letter matches (consumer={CONSUMER}), but 1 retrying and 1 "
            "discarded: choose them with --status\n"
        )
        nothing = run("replay", "start", "--error-class", "Other", "--yes", status=4).stderr
        assert nothing == "nothing to replay: no parked letter matches (error_class=Other)\n"
