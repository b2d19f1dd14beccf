"""The supervisor of server processes, as far as it needs none."""

import errno
import logging
import socket
from typing import Any

import pytest
from uvicorn.supervisors.multiprocess import Process

from aftercommit.server.http_server import Configuration
from aftercommit.server.protocol import Guards
from aftercommit.server.supervisor import Supervisor


def test_a_machine_that_has_no_room_for_a_process_is_asked_again_after_a_pause(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[Process] = []

    def full(process: Process) -> Any:
        tries.append(process)
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setenv("AFTERCOMMIT_WORKER", "")
    monkeypatch.setattr(Process, "start", full)
    with socket.socket() as bound, caplog.at_level(logging.WARNING, "aftercommit.server"):
        supervisor = Supervisor(Configuration("nobody:app", Guards(), 1.0, {"workers": 2}), bound, grace_seconds=1.0)

        supervisor._fill_up()
        supervisor._fill_up()

        assert supervisor._missing() == [1, 2]
        assert supervisor._until_next_begin() is not None
    assert 1 < len(tries) < 4, "after the first ones there is a pause"
    said = [record.getMessage() for record in caplog.records]
    assert said.count("server_process_not_started") == len(tries)
