"""The TypeScript client is installed as its README says: packed from a clone, or linked as a folder."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.programs import REPOSITORY

pytestmark = [pytest.mark.needs("npm"), pytest.mark.newest]

USE = 'import { follow, items, Feed } from "@aftercommit/client"; console.log(typeof follow, typeof items, typeof Feed)'


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone in which `npm ci` was run, and nothing was built."""
    installed = REPOSITORY / "web" / "node_modules"
    if not installed.is_dir():
        pytest.skip("the packages of web/ are not installed: make web")
    folder = tmp_path_factory.mktemp("clone") / "web"
    shutil.copytree(REPOSITORY / "web", folder, ignore=shutil.ignore_patterns("node_modules", "dist"))
    (folder / "node_modules").symlink_to(installed)
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "package.json").write_text('{"name": "project", "type": "module", "private": true}')
    (tmp_path / "use.js").write_text(USE)
    return tmp_path


def npm(folder: Path, *arguments: str) -> None:
    quiet = ("--offline", "--no-audit", "--no-fund")
    done = subprocess.run(["npm", *arguments, *quiet], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def used_in(project: Path) -> str:
    done = subprocess.run(["node", "use.js"], cwd=project, capture_output=True, text=True, timeout=60)
    return done.stdout.strip() or done.stderr


def test_a_package_that_was_packed_from_a_clone_works(web: Path, project: Path) -> None:
    npm(web, "pack", "-w", "client")
    (packed,) = web.glob("aftercommit-client-*.tgz")
    npm(project, "install", str(packed))
    assert used_in(project) == "function function function"
    assert not (project / "node_modules" / "@aftercommit" / "client").is_symlink()


def test_a_folder_of_a_clone_works(web: Path, project: Path) -> None:
    shutil.rmtree(web / "client" / "dist", ignore_errors=True)
    npm(project, "install", str(web / "client"))
    assert used_in(project) == "function function function"
