"""The golden schema is what the migrations make, and a difference is shown to whoever changed them."""

from pathlib import Path

import pytest

from tools import schema


@pytest.mark.thorough
def test_the_golden_schema_is_what_the_migrations_make():
    assert schema.difference() == "", "run `make schema` and review the difference"


@pytest.mark.thorough
def test_a_golden_schema_that_differs_is_shown_as_a_diff(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    golden = tmp_path / "schema.sql"
    golden.write_text(schema.GOLDEN.read_text(encoding="utf-8").replace("fillfactor='10'", "fillfactor='90'"))
    monkeypatch.setattr(schema, "GOLDEN", golden)

    assert schema.main(["--check"]) == 1

    printed = capsys.readouterr().out
    assert "-WITH (fillfactor='90');\n+WITH (fillfactor='10');" in printed
    assert "run `make schema`" in printed

    assert schema.main([]) == 0
    assert schema.main(["--check"]) == 0


def test_nothing_that_changes_from_run_to_run_is_in_the_golden_schema():
    lines = schema.GOLDEN.read_text(encoding="utf-8").splitlines()

    assert [line for line in lines if schema.NOISE.match(line)] == []
