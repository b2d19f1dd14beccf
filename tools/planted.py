"""Planted bugs: each is put into a copy of the tree, and the tests named with it must fail there.

A test that has never been seen to fail proves little. These are the mistakes that systems of this kind are known for;
`make planted` shows that ours would be caught. The copy is thrown away; nothing is changed here.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[1]
RELAY_SQL = "src/aftercommit/postgres/queries/relay.sql"
SLICES_SQL = "src/aftercommit/postgres/queries/slices.sql"
CARRIER = "src/aftercommit/relay/carrier.py"
ORDER = "tests/postgres/test_order.py"
HUB = "tests/postgres/test_feed_hub.py"
POLLING = "tests/feed/test_polling.py"
STREAMING = "tests/feed/test_streaming.py"
TASK_WORK = "systems/tasks/service/work.py"
MEMBERSHIP = "tests/contracts/test_tasks_membership.py"
TELEGRAM = "src/aftercommit/contrib/telegram/"

JOINT = "src/aftercommit/consumer/joint_slices.py"
JOINT_TESTS = "tests/postgres/test_consumer_joint.py"
SHARED = "src/aftercommit/postgres/shared.py"
OUTBOXES = "tests/postgres/test_engine_outboxes.py"


@dataclass(frozen=True)
class Bug:
    """One mistake: what it is called, where it is made, and which test must notice."""

    name: str
    file: str
    right: str
    wrong: str
    test: str


BUGS = [
    Bug(
        "a joint slice records what it has not handled: a handler that commits takes events from other consumers",
        JOINT,
        "handled = left if ended is None else ended.last_place + 1",
        "handled = len(items)",
        f"{JOINT_TESTS}::test_one_that_commits_takes_no_event_from_the_others",
    ),
    Bug(
        "a joint slice believes the first look at the inbox: an event that is known by now is handled twice",
        SLICES_SQL,
        "as handled (event_id, consumer_name)\norder by event_id, consumer_name",
        "as handled (event_id, consumer_name)\norder by event_id, consumer_name on conflict do nothing",
        f"{JOINT_TESTS}::test_an_event_that_becomes_known_while_handlers_work_is_not_handled_twice",
    ),
    Bug(
        "the sequence is the readers' cursor: a late commit is hidden behind it",
        RELAY_SQL,
        """(select position - (select moved from total) from tip)
+ case when (select cardinality(seqs) = moved from total)
       then width_bucket(moved.seq, (select seqs from total))
       else (select count(*) from moved before where (before.seq, before.id) <= (moved.seq, moved.id)) end""",
        "moved.seq",
        f"{ORDER}::test_late_commit_of_an_early_seq_is_never_hidden_from_a_poller",
    ),
    Bug(
        "the append is not fenced: a relay that lost its lease writes on",
        RELAY_SQL,
        "where {which} and fence.held = %(lane_count)s",
        "where {which} and fence.held >= 0",
        f"{ORDER}::test_a_relay_whose_lanes_were_taken_moves_nothing_even_if_its_heir_has_not_begun",
    ),
    Bug(
        "marked before delivered: a crash in between loses the event",
        CARRIER,
        "        outcome = await self.deliver(batch)\n        await self.settle(connection, batch, outcome)",
        "        await self.settle(connection, batch, BatchOutcome(list(batch.events), []))\n"
        "        await self.deliver(batch)",
        f"{ORDER}::test_a_relay_that_dies_on_its_way_to_the_transport_has_marked_nothing",
    ),
    Bug(
        "an event of the bus counts as new although the inbox has it",
        SLICES_SQL,
        "    order by event_id\n)\nselect 1, null, null, {mark}",
        "    order by event_id\n    on conflict do nothing\n)\nselect 1, null, null, {mark}",
        "tests/contracts/test_consumer_contracts.py::test_two_deliveries_of_one_event_at_once_have_one_effect",
    ),
    Bug(
        "nobody reads the answer to COMMIT: a transaction that PostgreSQL rolled back counts as committed",
        "src/aftercommit/postgres/commits.py",
        'if tag != "COMMIT":',
        'if tag == "nothing":',
        "tests/postgres/test_commits.py::test_a_commit_that_the_server_answers_with_rollback_is_none",
    ),
    Bug(
        "a handler's connection is not taken back: a task that is still at work on it fails its neighbours",
        "src/aftercommit/consumer/loans.py",
        "        return not lent.lock.locked() and _taken_back(lent)",
        "        return True",
        "tests/contracts/test_handler_contracts.py::test_each_event_is_handled_once_or_ends_as_a_dead_letter",
    ),
    Bug(
        "the watermark passes events of transactions that are still open",
        "src/aftercommit/relay/plan.py",
        "self.value = max(self.value, min(reached, resolved))",
        "self.value = max(self.value, reached)",
        f"{ORDER}::test_late_commit_is_found_although_the_watermark_has_moved_on",
    ),
    Bug(
        "the watermark trusts what was learned after the read",
        "src/aftercommit/relay/due_reader.py",
        "self.watermark.settled(batch.fresh, unsettled, batch.resolved)",
        "self.watermark.settled(batch.fresh, unsettled, self._marks.resolved)",
        f"{ORDER}::test_an_event_committed_between_read_and_resolution_is_not_stepped_over",
    ),
    Bug(
        "what is appended while a strand is loaded is not set aside",
        "src/aftercommit/feed/strands/strand.py",
        "            self.pending.entries.append(entry)\n",
        "",
        f"{HUB}::test_an_event_appended_while_a_strand_is_loaded_is_there_once",
    ),
    Bug(
        "a page is not bounded by the head that its tag was made of",
        "src/aftercommit/feed/strands/page_reader.py",
        "end = strand.ring.cursor(strand.head if upto is None else min(upto, strand.head))",
        "end = strand.ring.cursor(strand.head)",
        f"{HUB}::test_events_between_tag_and_page_are_in_the_page_but_never_only_in_the_tag",
    ),
    Bug(
        "a cursor ahead of this process is taken for one of another log",
        "src/aftercommit/feed/strands/history.py",
        "        if place.number > max(known, self.base):\n",
        "        if place.number > max(known, self.base) - 2:\n",
        f"{HUB}::test_a_cursor_from_a_process_that_is_ahead_is_not_gone",
    ),
    Bug(
        "retention overtakes the tailer and nobody is told",
        "src/aftercommit/feed/strands/tail_position.py",
        "if tip.position > self.position and not tip.follows:",
        "if tip.position < self.position:",
        "tests/postgres/test_feed_tailer.py::test_a_tailer_that_retention_has_overtaken_says_so_to_readers",
    ),
    Bug(
        "a publish by COPY asks for sleeping relays first, and locks the outbox later",
        "src/aftercommit/outbox/publisher.py",
        "        elif _may_copy(self.fetch(*inserter.first(rows, self.style))):\n"
        "            self.copy(inserter.others(rows))\n",
        """        elif True:
            channel = inserter._shape.publish_channel
            self.fetch(f"select pg_notify('{channel}', '') from publish_suite.relay where listening", ())
            self.copy(inserter.others([rows[0], *rows]))
""",
        "tests/postgres/test_publish_copy.py::test_a_publish_by_copy_wakes_a_relay_that_falls_asleep_meanwhile",
    ),
    Bug(
        "a publish by COPY does not ask for sleeping relays",
        "src/aftercommit/outbox/publisher.py",
        "        elif _may_copy(self.fetch(*inserter.first(rows, self.style))):\n"
        "            self.copy(inserter.others(rows))\n",
        "        elif True:\n            self.copy(inserter.others([rows[0], *rows]))\n",
        "tests/postgres/test_publish_copy.py::test_a_publish_by_copy_wakes_a_listening_relay",
    ),
    Bug(
        "a slice that was opened early is used at whatever position its event comes",
        "src/aftercommit/consumer/opening.py",
        'and begin.parameters.get("position") == self.position',
        "and True",
        "tests/postgres/test_consumer_early.py::test_an_event_before_it_that_does_not_come_moves_no_checkpoint_too_far",
    ),
    Bug(
        "behind the bus, a slice is used for whatever events come, also if its inbox rows are of others",
        "src/aftercommit/consumer/early_slice.py",
        "                return self._reads.pop(ids)\n            await self.release(ids)",
        "                return self._reads.pop(ids)\n            return self._reads.popitem()[1]",
        "tests/postgres/test_bus_early.py::test_a_condition_that_does_not_hold_leaves_no_inbox_row",
    ),
    Bug(
        "a reader's numbers are drawn when an event is written, and not when it is appended",
        RELAY_SQL,
        """streams.seq - count(*) over (partition by moved.aggregate_type, moved.aggregate_id)
    + row_number() over (partition by moved.aggregate_type, moved.aggregate_id order by moved.seq)
""",
        "moved.seq\n",
        f"{HUB}::test_pollers_through_two_processes_see_everything_once_in_whatever_order_writers_commit",
    ),
    Bug(
        "the tag of a page does not say what was newest: 304 hides what has come since",
        "src/aftercommit/feed/endpoints/etag.py",
        "newest = strand.head if head is None else head",
        "newest = 0",
        f"{POLLING}::test_a_new_line_is_never_hidden_by_a_304",
    ),
    Bug(
        "a tag is answered 304 before anybody has asked who asks",
        "src/aftercommit/feed/endpoints/polling.py",
        "        admission = await self._gate.admit(headers, key, peer_of(scope))\n",
        """        strand = await self._hub.strand(self.feed, key or "")
        if "if-none-match" in headers and strand.head:
            await answer(send, 304, [])
            return
        admission = await self._gate.admit(headers, key, peer_of(scope))
""",
        f"{POLLING}::test_who_may_not_read_gets_no_304_either",
    ),
    Bug(
        "a rule of redaction that fails lets the text out",
        "src/aftercommit/redaction/redactor.py",
        """        except Exception:  # noqa: BLE001 - a text that was not checked must not leave
            return WITHHELD
""",
        """        except Exception:
            return value
""",
        "tests/unit/test_redaction.py::TestFailure::test_a_rule_that_fails_withholds_the_text",
    ),
    Bug(
        "the end of a value is looked for again and again: a text takes the square of its length",
        "src/aftercommit/redaction/key_value.py",
        """    if kind not in (SECRET, MAYBE, LIKELY) and not looks_personal(text[place : place + LONGEST_PERSONAL]):
        # Before""",
        """    if kind is None:
        # Before""",
        "tests/unit/test_redaction_steps.py::test_twice_the_text_takes_twice_the_steps",
    ),
    Bug(
        "a filtered reader stays where its last event was, however much was looked through",
        "src/aftercommit/feed/strands/ring.py",
        "        return Page(found, self._end(number, end))\n",
        """        if found:
            return Page(found, place_of(found[-1]))
        return Page(found, self._end(number, self._index(number)))
""",
        f"{STREAMING}::test_filters_hold_on_a_stream_and_the_place_moves_on",
    ),
    Bug(
        "a stream goes on with the event that its reader has",
        "src/aftercommit/feed/live/stream_position.py",
        "page = await self._hub.page(self.strand, after, limit, self.chosen)",
        "page = await self._hub.page(self.strand, after and Cursor(after.number - 1), limit, self.chosen)",
        f"{STREAMING}::test_a_reader_that_comes_back_goes_on_where_it_was_on_any_server",
    ),
    Bug(
        "a stream goes on one event too late",
        "src/aftercommit/feed/live/stream_position.py",
        "page = await self._hub.page(self.strand, after, limit, self.chosen)",
        "page = await self._hub.page(self.strand, after and Cursor(after.number + 1), limit, self.chosen)",
        f"{STREAMING}::test_a_reader_that_comes_back_goes_on_where_it_was_on_any_server",
    ),
    Bug(
        "what follows from a request is remembered without the token, and the next reader gets another's page",
        "src/aftercommit/feed/endpoints/memory_polls.py",
        "place := (authorization, key, query))\n        if poll is not None and poll.known.reader == reader:\n",
        "place := ('', key, query))\n        if poll is not None:\n",
        "tests/feed/test_answers_from_memory.py::test_at_one_address_memory_gives_everybody_their_own",
    ),
    Bug(
        "each process keeps a limit by itself, so that there are as many as processes",
        "src/aftercommit/access/rate_limiter.py",
        "            count.log = heard\n",
        "            pass\n",
        "tests/postgres/test_guards_rate_limit.py::test_what_one_process_lets_through_counts_for_the_others",
    ),
    Bug(
        "a limit is heard of, but what passed meanwhile is forgotten",
        "src/aftercommit/access/rate_limiter.py",
        "        heard = SlidingLog(added_up(entries.items(), count.unsent.items()))\n",
        "        heard = SlidingLog(added_up(entries.items()))\n",
        "tests/postgres/test_guards_rate_limit.py::test_what_a_process_decides_alone_during_an_exchange_comes_on_top",
    ),
    Bug(
        "a request passes while the database grants the rest of the limit to others",
        "src/aftercommit/access/rate_limiter.py",
        "        while (exchange := count.exchange) is not None and not self._decides_alone():\n",
        "        while (exchange := None) is not None and not self._decides_alone():\n",
        "tests/postgres/test_guards_rate_limit.py::test_a_request_that_arrives_during_an_exchange_waits_for_its_answer",
    ),
    Bug(
        "whoever was let in once is not asked again: a revoked token keeps its stream",
        "src/aftercommit/feed/live/stream.py",
        "if not self._source.access.still_valid(self._reader):",
        "if self._reader is None:",
        f"{STREAMING}::test_a_revoked_token_ends_its_stream_and_its_long_poll",
    ),
    Bug(
        "a revocation that commits late is stepped over",
        "src/aftercommit/postgres/queries/guards.sql",
        "select pg_snapshot_xmin(pg_current_snapshot())::text::bigint, kind, value,",
        "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint, kind, value,",
        "tests/postgres/test_guards_access.py::TestRevocation::test_a_revocation_that_commits_late_is_not_missed",
    ),
    Bug(
        "a token that was issued for somebody else is accepted",
        "src/aftercommit/access/tokens.py",
        'options={"require": _REQUIRED},',
        'options={"require": _REQUIRED, "verify_aud": False},',
        "tests/unit/test_tokens.py::test_a_token_with_a_wrong_claim_is_refused",
    ),
    Bug(
        "tasks: who hears is read without a lock, so that a dismissal does not wait",
        TASK_WORK,
        "    order by role_id, user_id\n    for share\n",
        "    order by role_id, user_id\n",
        f"{MEMBERSHIP}::test_who_loses_a_role_hears_of_what_was_under_way_and_of_nothing_after_the_answer",
    ),
    Bug(
        "tasks: a task is read without a lock, so that two decide at once",
        "systems/tasks/service/task.py",
        '_LOCKED: Final = f"{_ONE} for update"',
        "_LOCKED: Final = _ONE",
        f"{MEMBERSHIP}::test_what_is_done_with_one_task_waits_for_its_turn_and_may_come_too_late",
    ),
    Bug(
        "tasks: the state is looked at before who may",
        "systems/tasks/service/machine.py",
        """    if not rule.allows(relations):
        return "forbidden"
    return "allowed" if state in rule.states else "wrong state"
""",
        """    if rule.states and state not in rule.states:
        return "wrong state"
    return "allowed" if rule.allows(relations) else "forbidden"
""",
        "tests/unit/test_tasks_machine.py::test_the_rules_are_those_that_were_agreed_on_in_every_state_and_for_everybody",
    ),
    Bug(
        "tasks: an event is published beside the transaction and not in it",
        TASK_WORK,
        "    receipt = await outbox.publish(connection, event, audience=routing.audience(rule.event, people))\n",
        """    async with await type(connection).connect(connection.info.dsn) as beside:
        receipt = await outbox.publish(beside, event, audience=routing.audience(rule.event, people))
""",
        f"{MEMBERSHIP}::test_a_transaction_that_is_undone_leaves_neither_task_nor_history_nor_event",
    ),
    Bug(
        "tasks: who once worked on a task hears of everything that follows",
        "systems/tasks/service/routing.py",
        "EVERYBODY: Final = (Hearer.CREATOR, Hearer.ASSIGNEE, Hearer.SUPERVISORS)",
        "EVERYBODY: Final = tuple(Hearer)",
        "tests/unit/test_tasks_machine.py::test_an_audience_has_everybody_once_and_nobody_else",
    ),
    Bug(
        "tasks: a code is looked up and then used: of two at once both win",
        "systems/tasks/service/link_codes.py",
        "    with used as (delete from tasks.link_codes where code_hash = %s returning user_id, expires_at)",
        "    with used as (select user_id, expires_at from tasks.link_codes where code_hash = %s)",
        "tests/contracts/test_tasks_link_codes.py::test_of_two_who_show_a_code_at_once_exactly_one_wins",
    ),
    Bug(
        "tasks: a header is believed from this machine although there is a credential",
        "src/aftercommit/access/trusted.py",
        "        if await self._bearer.grants(ACT_AS_USER):\n",
        '        if await self._bearer.grants("nothing"):\n',
        "tests/contracts/test_tasks_identity.py"
        "::test_with_a_credential_a_program_acts_for_anybody_and_neighbours_are_not_believed",
    ),
    Bug(
        "telegram: the place is kept before the message is sent, and a crash in between loses it",
        TELEGRAM + "delivery.py",
        "            reply = await self._send(link, text, event.id)\n",
        "            await self._memory.keep(lambda store: store.move(link, place))\n"
        "            reply = await self._send(link, text, event.id)\n",
        "tests/telegram/test_kills.py::test_a_message_is_repeated_only_when_its_place_was_not_kept",
    ),
    Bug(
        "telegram: a message counts from its answer on, so that slow ones arrive too close together",
        TELEGRAM + "pacing.py",
        "        if self._under_way + len(self._answered) < self._overall:\n",
        "        if len(self._answered) < self._overall:\n",
        "tests/telegram/test_pacing.py::test_no_window_of_a_second_has_more_than_the_limits_allow",
    ),
    Bug(
        "telegram: an event of a chat that is blocked is passed over and not recorded",
        TELEGRAM + "delivery.py",
        "        if isinstance(reply, Unreachable | Refused):\n            failure = _failure(link, place,",
        "        if isinstance(reply, Refused):\n            failure = _failure(link, place,",
        "tests/telegram/test_delivery.py::test_two_users_one_out_of_reach_and_the_other_gets_everything_in_order",
    ),
    Bug(
        "telegram: a chat that was linked anew meanwhile gets what is the other user's",
        "src/aftercommit/contrib/telegram/state.py",
        "        mine = (self.user_id, self.linked_at, self.place)\n"
        "        return other is not None and mine == (other.user_id, other.linked_at, other.place)\n",
        "        return other is not None and self.place == other.place\n",
        "tests/telegram/test_meanwhile.py"
        "::test_a_link_to_another_at_the_very_same_place_gets_nothing_of_the_page_before_it",
    ),
    Bug(
        "telegram: a chat that Telegram makes wait keeps its turn, and others theirs",
        TELEGRAM + "delivery.py",
        "        if reply.limited and reply.seconds is not None:\n            return reply.seconds\n",
        "        if reply.limited and reply.seconds is not None:\n            return 0.0\n",
        "tests/telegram/test_delivery.py::test_a_page_is_not_held_in_memory_while_telegram_makes_its_chat_wait",
    ),
    Bug(
        "telegram: a backend that does not answer at the start is asked again and again",
        TELEGRAM + "bot.py",
        "        await connector.connect()\n",
        "        while not await connector.connect():\n            await asyncio.sleep(0.01)\n",
        "tests/telegram/test_startup.py::test_a_backend_that_fails_is_asked_once_and_told_once",
    ),
    Bug(
        "telegram: the token is in what httpx logs",
        TELEGRAM + "api.py",
        '            logging.getLogger("httpx").addFilter(self._redaction)\n',
        "",
        "tests/telegram/test_secrets.py::test_no_log_line_of_ours_or_of_httpx_has_the_token",
    ),
    Bug(
        "shared connections: a statement that was cut off leaves its connection to the next",
        SHARED,
        "        connection.pgconn.finish()\n",
        "        self._lent.add(connection)\n",
        "tests/postgres/test_shared_connections.py::"
        "test_who_is_cut_off_in_a_statement_leaves_neither_its_connection_nor_its_answer",
    ),
    Bug(
        "shared connections: a lost session leaves its connections to the next",
        SHARED,
        "        if error is not None or not self._sessions:\n",
        "        if not self._sessions:\n",
        "tests/postgres/test_shared_connections.py::test_after_a_broken_session_the_next_one_has_new_connections",
    ),
    Bug(
        "shared connections: those that hang stop the leases of every outbox",
        "src/aftercommit/postgres/elastic_limit.py",
        "            self._extra = self.used - self.places + 1\n",
        "            self._extra = 0\n",
        f"{OUTBOXES}::test_locked_tables_of_some_outboxes_delay_no_lease_of_another",
    ),
    Bug(
        "shared connections: an outbox without a handler at work waits for those of another",
        "src/aftercommit/consumer/runner.py",
        "connections.permit(outbox.schema)",
        'connections.permit("all")',
        f"{OUTBOXES}::test_handlers_that_hang_leave_the_other_outboxes_their_connection_and_all_their_leases",
    ),
    Bug(
        "shared connections: every service has connections of its own",
        "src/aftercommit/engine.py",
        "connections=shared,\n                hand_over=",
        "hand_over=",
        f"{OUTBOXES}::test_twenty_outboxes_share_twenty_connections",
    ),
]


def catches(bug: Bug, folder: Path) -> bool:
    """Whether the test fails on a tree with the bug, for a reason of its own."""
    for name in ("src", "systems", "tests", "pyproject.toml"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    target = folder / bug.file
    text = target.read_text()
    if text.count(bug.right) != 1:
        raise SystemExit(f"{bug.file} no longer has the place for {bug.name!r}: bring tools/planted.py up to date")
    target.write_text(text.replace(bug.right, bug.wrong))
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", bug.test],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    failed = finished.returncode == 1 and "1 failed" in finished.stdout
    if not failed:
        click.echo(finished.stdout[-2000:], err=True)
    return failed


@click.command()
@click.option("--only", default="", help="Only bugs whose name contains this.")
def main(only: str) -> None:
    """Plant each bug in a copy of the tree and see that its test fails."""
    missed = 0
    for bug in BUGS:
        if only not in bug.name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            caught = catches(bug, Path(folder))
        missed += not caught
        click.echo(f"{'caught' if caught else 'MISSED'}  {bug.name}\n        {bug.test}")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
