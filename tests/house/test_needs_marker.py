"""A test that needs a program says which package brings it, and in CI is never skipped for its absence."""

import pytest

from tests.conftest import require_program


def test_a_missing_program_skips_and_names_its_debian_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AFTERCOMMIT_CI", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(pytest.skip.Exception, match="not installed: apt install no-such-program"):
        require_program("no-such-program")


def test_a_missing_program_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFTERCOMMIT_CI", "1")
    with pytest.raises(pytest.fail.Exception, match="no-such-program is not installed"):
        require_program("no-such-program")


@pytest.mark.needs("sh")
def test_a_program_that_is_there_lets_the_test_run() -> None:
    require_program("sh")
