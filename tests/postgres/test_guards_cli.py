"""`aftercommit token`: what is printed where, what is stored, and that a secret is shown once."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from aftercommit.access.token_keys import TokenKeys
from aftercommit.access.tokens import TokenVerifier
from aftercommit.cli import cli
from tests.support.programs import CLEANED
from tests.support.shop import Shop

pytestmark = pytest.mark.newest

READ = "investigation:*:read"


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in (*CLEANED, "AFTERCOMMIT_TOKEN_KEYS", "AFTERCOMMIT_TOKEN_KEYS_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AFTERCOMMIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def outbox(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setenv("DATABASE_URL", shop.dsn)
    return shop


def run(*arguments: str, **options: Any) -> Result:
    return CliRunner().invoke(cli, ["token", *arguments], **options)


def good(*arguments: str, **options: Any) -> Result:
    result = run(*arguments, **options)
    assert result.exit_code == 0, result.output
    return result


class TestMint:
    def test_a_minted_token_is_all_of_stdout_and_is_accepted(self, home: Path) -> None:
        result = good("mint", "--user", "ann", "--may", READ, "--may", "a:b", "--for", "90m")

        (token,) = result.stdout.splitlines()
        assert token not in result.stderr
        assert "valid for user 'ann' until " in result.stderr
        file = home / "token-keys.json"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        reader = TokenVerifier(TokenKeys.from_file(file)).verify(token)
        assert (reader.user, reader.permissions.granted) == ("ann", ("a:b", READ))
        assert reader.issued_at is not None
        assert reader.expires_at == reader.issued_at + 5400 + 30

    def test_the_second_token_has_the_same_key(self, home: Path) -> None:
        tokens = [good("mint", "--user", "ann", "--may", READ).stdout.strip() for _ in range(2)]
        verifier = TokenVerifier(TokenKeys.from_file(home / "token-keys.json"))

        assert len({verifier.verify(token).token_id for token in tokens}) == 2

    def test_without_permissions_it_is_a_token_for_what_needs_none_and_says_so(self, home: Path) -> None:
        minted = good("mint", "--user", "3")
        verifier = TokenVerifier(TokenKeys.from_file(home / "token-keys.json"))

        assert verifier.verify(minted.stdout.strip()).user == "3"
        assert "it has no permissions (--may)" in minted.stderr

    def test_as_json_it_is_one_document(self) -> None:
        document = json.loads(good("mint", "--user", "ann", "--may", READ, "--json").stdout)

        assert document["user"] == "ann"
        assert document["permissions"] == [READ]
        assert document["expires_at"].endswith("Z")

    def test_keys_can_be_given_and_issuer_and_audience_said(self, tmp_path: Path) -> None:
        key = {"kty": "oct", "kid": "k", "alg": "HS256", "k": "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY"}
        file = tmp_path / "keys.json"
        file.write_text(json.dumps({"keys": [key]}))
        options = ["mint", "--user", "ann", "--may", READ, "--keys", str(file)]

        assert "a token needs an issuer and an audience" in run(*options).stderr
        token = good(*options, "--issuer", "us", "--audience", "them").stdout.strip()
        assert TokenVerifier(TokenKeys.from_file(file), issuer="us", audience="them").verify(token).user == "ann"

    @pytest.mark.parametrize(
        ("arguments", "status", "said"),
        [
            (["--may", READ], 2, "--user"),
            (["--user", "ann", "--may", "a:b*"], 1, "is not valid"),
            (["--user", "", "--may", READ], 1, "is not valid"),
            (["--user", "ann", "--may", READ, "--for", "soon"], 2, "is not a duration"),
            (["--user", "ann", "--may", READ, "--for", "forever"], 2, "a JWT must expire"),
            (["--user", "ann", "--may", READ, "--for", "50w", "--keys", "/nowhere/keys"], 1, "there is no file"),
        ],
    )
    def test_wrong_usage_is_said(self, arguments: list[str], status: int, said: str) -> None:
        result = run("mint", *arguments)

        assert (result.exit_code, result.stdout) == (status, "")
        assert said in result.stderr


class TestServiceTokens:
    def test_the_first_token_that_acts_as_users_says_what_it_ends(self, outbox: Shop) -> None:
        reader = good("create", "reader", "--may", READ)
        first, second = (good("create", "bot", "--may", "act-as-user") for _ in range(2))
        (token_id, second_id) = (each.stdout.split("_")[1] for each in (first, second))

        assert "X-User-Id" not in reader.stderr + second.stderr
        assert first.stderr.splitlines()[1] == (
            "from now on, development servers too require this token with `X-User-Id`. Give it to the programs that "
            "send this header (for the bot: AFTERCOMMIT_BOT_CREDENTIAL)"
        )
        good("revoke", "--yes", token_id, second_id)
        again = good("create", "bot", "--may", "act-as-user", "--json")
        assert json.loads(again.stdout)["name"] == "bot"
        assert "development servers too require this token" in again.stderr

    def test_a_token_is_made_listed_and_revoked_and_shown_once(self, outbox: Shop) -> None:
        made = good("create", "bot", "--may", READ, "--may", "act-as-user", "--for", "90d", "--by", "ann")
        (token,) = made.stdout.splitlines()
        token_id = token.split("_")[1]
        assert token not in made.stderr
        assert f"service token {token_id} for 'bot'" in made.stderr

        listed = good("list")
        assert token_id in listed.stdout
        assert "valid" in listed.stdout
        assert token.rpartition("_")[2] not in listed.output

        assert f"service token {token_id} is revoked" in good("revoke", "--yes", token_id).stderr
        assert "was revoked before" in good("revoke", "--yes", f"act_{token_id}").stderr
        (row,) = json.loads(good("list", "--json").stdout)["service_tokens"]
        assert (row["id"], row["state"], row["created_by"]) == (token_id, "revoked", "ann")
        assert "secret_hash" not in row

    def test_a_whole_token_is_understood_and_can_come_from_stdin(self, outbox: Shop) -> None:
        tokens = [good("create", "bot", "--may", READ).stdout.strip() for _ in range(2)]

        assert "is revoked" in good("revoke", "--yes", tokens[0]).stderr
        said = good("revoke", "--yes", "-", input=tokens[1] + "\n").stderr
        assert tokens[1] not in said
        assert outbox.value("select count(*) from service_token where revoked_at is null") == 0

    def test_a_token_that_is_not_there_is_said_and_the_others_are_revoked(self, outbox: Shop) -> None:
        token = good("create", "bot", "--may", READ, "--json").stdout
        token_id = json.loads(token)["id"]

        result = run("revoke", "--yes", "act_nobodynobody", token_id)

        assert result.exit_code == 4
        assert "there is no service token nobodynobody" in result.stderr
        assert f"service token {token_id} is revoked" in result.stderr

    def test_jwts_are_revoked_by_token_by_id_and_by_user(self, outbox: Shop) -> None:
        token = good("mint", "--user", "ann", "--may", READ).stdout.strip()

        good("revoke", "--yes", token, "some-jti", "--user", "bob", "--reason", "laptop lost", "--by", "ann")

        revoked = json.loads(good("list", "--json").stdout)["revocations"]
        assert {(each["kind"], each["reason"]) for each in revoked} == {
            ("token", "laptop lost"),
            ("user", "laptop lost"),
        }
        assert token not in str(revoked)
        assert {"some-jti", "bob"} < {each["value"] for each in revoked}
        assert "laptop lost" in good("list").stdout

    def test_revoke_asks_first(self, outbox: Shop) -> None:
        token_id = json.loads(good("create", "bot", "--may", READ, "--json").stdout)["id"]

        refused = run("revoke", token_id, "--user", "bob", input="n\n")
        assert refused.exit_code == 1
        assert "Revoke 1 token and all JWTs of 'bob' that were issued so far?" in refused.stderr
        assert run("revoke", "-", input=f"{token_id}\n").exit_code == 1
        assert outbox.value("select count(*) from service_token where revoked_at is null") == 1

    def test_nothing_to_revoke_is_wrong_usage(self, outbox: Shop) -> None:
        assert run("revoke").exit_code == 2

    def test_without_an_outbox_the_remedy_is_said(self, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DATABASE_URL", database)

        result = run("list")

        assert result.exit_code == 3
        assert "aftercommit migrate up" in result.stderr
