"""What requests to the systems are told of a body that cannot be read: what is wrong with it, in a few words."""

import json

import pytest
from pydantic import ValidationError

from aftercommit.http.errors import Problem
from systems.host.routes import decode_json, refusal
from systems.investigations.service.produced_logs import read_logs
from systems.tasks.api.bodies import TaskWanted

LINE = {"source": "backend", "service": "shop", "level": "INFO", "message": "hello"}
# Longer than an answer has any use for, and what a request may well carry.
LONG = "k" * 1_000_000


def refused_logs(body: str) -> Problem:
    with pytest.raises(Problem) as refused:
        read_logs(body.encode(), "INV-1")
    assert refused.value.status == 400
    return refused.value


def refused_body(body: str) -> Problem:
    with pytest.raises(Problem) as refused:
        decode_json(body.encode())
    assert refused.value.status == 400
    return refused.value


def refused_task(body: object) -> Problem:
    with pytest.raises(ValidationError) as refused:
        TaskWanted.model_validate(body)
    return refusal([{**error, "loc": ("body", *error["loc"])} for error in refused.value.errors()])


@pytest.mark.parametrize("line", [{**LINE, LONG: 1}, {**LINE, "level": LONG}, {**LINE, "source": LONG}])
@pytest.mark.contract("L12")
def test_what_is_wrong_with_a_line_is_told_in_a_few_words_however_long_it_is(line: dict[str, object]) -> None:
    body = json.dumps(line)

    for said in (refused_logs(body), refused_logs(f"[{body}]")):
        assert len(said.body()) < 2000
        assert said.details is not None
        assert said.details["index"] == 0
        assert said.details["field"]


def test_what_is_wrong_with_a_body_is_told_in_a_few_words_however_long_it_is() -> None:
    said = refused_task({"title": "x", LONG: 1})

    assert len(said.body()) < 2000
    assert "Extra inputs are not permitted" in said.message


@pytest.mark.parametrize(
    "text", [r"\ud83d", r"cut off \ud83d", r"\ud83d and on", r"\ude00", r"\ud83d\u0041", r"\\\ud83d"]
)
@pytest.mark.contract("L12")
def test_half_of_a_character_is_named_as_what_it_is(text: str) -> None:
    """A browser that cuts a text by its length may cut a character in two, and that is no JSON that can be stored."""
    half = r"\ude00" if "ude00" in text else r"\ud83d"

    for said in (
        refused_logs(json.dumps(LINE).replace("hello", text)),
        refused_logs(json.dumps([LINE, {**LINE, "context": {"😀": "whole"}}]).replace("hello", text)),
        refused_body(json.dumps({"name": "hello"}).replace("hello", text)),
    ):
        assert f"{half} is half of a character: cut texts between characters" in said.message


@pytest.mark.parametrize("text", [r"\\ud83d", r"\ud83d\ude00", "😀"])
def test_what_only_looks_like_half_of_a_character_is_read(text: str) -> None:
    (log,) = read_logs(json.dumps(LINE, ensure_ascii=False).replace("hello", text).encode(), "INV-1")
    read = decode_json(json.dumps({"name": "hello"}).replace("hello", text).encode())

    assert log.message == read["name"] == json.loads(f'"{text}"')


@pytest.mark.parametrize("body", ["{", '{"name": }', "'name'", '{"name": "x"'])
def test_what_else_is_no_json_is_said_as_its_reader_says_it(body: str) -> None:
    assert refused_logs(body).message.startswith("The body is not valid JSON: ")
    assert refused_body(body).message.startswith("The body is not valid JSON: ")


@pytest.mark.contract("L12")
def test_a_request_without_a_body_is_told_to_send_one() -> None:
    assert "The body is missing: send a log" in refused_logs("").message
    missing = {"type": "missing", "loc": ("body",), "msg": "Field required", "input": None}
    assert refusal([missing]).message == "The body is missing: send a JSON object"


@pytest.mark.parametrize("given", ["3", "{}", "null", '"x"'])
@pytest.mark.contract("L12")
def test_logs_that_are_no_list_are_named(given: str) -> None:
    said = refused_logs(f'{{"logs": {given}}}')

    assert "`logs` must be an array of logs" in said.message
    assert said.details == {"field": "logs"}


def test_an_unknown_field_is_named_as_a_whole() -> None:
    assert (refused_logs(json.dumps({**LINE, "a`b": 1})).details or {})["field"] == "a`b"


@pytest.mark.contract("L12")
def test_a_field_that_is_there_twice_is_refused_wherever_it_is() -> None:
    line = json.dumps(LINE)
    for body in (
        line[:-1] + ', "level": "ERROR"}',
        f'[{line}, {line[:-1]}, "context": {{"a": {{"level": 1, "level": 2}}}}}}]',
        f'{{"logs": [{line[:-1]}, "level": "INFO"}}]}}',
        f'{{"logs": [{line}], "logs": [{line}]}}',
    ):
        problem = refused_logs(body)
        assert problem.message.endswith("appears more than once: send it once")
        assert problem.details is not None
        assert problem.details["field"] in ("level", "logs")
    assert refused_body('{"name": "a", "name": "a"}').details == {"field": "name"}
    assert decode_json(b'{"name": "a"}') == {"name": "a"}


@pytest.mark.parametrize(
    ("body", "message", "field"),
    [
        ({}, "title: Field required", "title"),
        ({"title": ""}, "title: String should have at least 1 character", "title"),
        ({"title": "x" * 201}, "title: String should have at most 200 characters", "title"),
        ({"title": 7}, "title: Input should be a valid string", "title"),
        ({"title": " "}, "title: must not be blank", "title"),
        (
            {"title": "x", "assignee_user_id": 0},
            "assignee_user_id: Input should be greater than or equal to 1",
            "assignee_user_id",
        ),
        (
            {"title": "x", "assignee_user_id": "7"},
            "assignee_user_id: Input should be a valid integer",
            "assignee_user_id",
        ),
        (
            {"title": "x", "supervisor_role_ids": [1] * 21},
            "supervisor_role_ids: List should have at most 20 items after validation, not 21",
            "supervisor_role_ids",
        ),
        (
            {"title": "x", "supervisor_role_ids": ["x"]},
            "supervisor_role_ids[0]: Input should be a valid integer",
            "supervisor_role_ids",
        ),
        ({"title": "x", "titel": "y"}, "titel: Extra inputs are not permitted", "titel"),
        ([], "body: Input should be a valid dictionary or instance of TaskWanted", None),
    ],
)
def test_an_error_names_the_field_and_says_what_is_expected(body: object, message: str, field: str | None) -> None:
    said = refused_task(body)
    assert said.message == message
    assert (said.details or {}).get("field") == field


@pytest.mark.parametrize(
    ("change", "field", "reason"),
    [
        ({"service": ""}, "service", "Expected `str` of length >= 1"),
        ({"message": 7}, "message", "Expected `str`, got `int`"),
        ({"level": "LOUD"}, "level", "Invalid enum value 'LOUD': use one of DEBUG, INFO, WARN, ERROR"),
        ({"event_id": "x"}, "event_id", "Invalid UUID"),
        ({"investigation_id": ""}, "investigation_id", "Expected `str` of length >= 1"),
        ({"schema_version": 2}, "schema_version", "Expected `int` <= 1"),
        ({"colour": "red"}, "colour", "Object contains unknown field `colour`"),
    ],
)
@pytest.mark.contract("L12")
def test_an_error_names_the_line_and_the_field_and_says_what_is_expected(
    change: dict[str, object], field: str, reason: str
) -> None:
    said = refused_logs(json.dumps([LINE, {**LINE, **change}]))
    assert said.message == f"Invalid log: log 1, {field}: {reason}"
    assert said.details == {"index": 1, "field": field, "reason": reason}
