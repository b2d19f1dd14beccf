"""The README's snippet is a program: it runs as it stands and prints what the README says."""

import os
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def blocks(language: str) -> list[str]:
    """The fenced blocks of one language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)


def test_the_first_event_prints_what_the_readme_says(tmp_path: Path) -> None:
    """A newcomer pastes the first python block into a file and runs it."""
    program = tmp_path / "first_event.py"
    program.write_text(blocks("python")[0])
    environment = {key: value for key, value in os.environ.items() if key != "DATABASE_URL"}
    environment["AFTERCOMMIT_HOME"] = str(tmp_path / "home")
    ran = subprocess.run(
        [sys.executable, str(program)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == blocks("text")[0]


def test_every_link_of_the_docs_leads_somewhere() -> None:
    """Relative links in README and docs name files that exist."""
    root = README.parent
    for page in [README, *root.glob("docs/**/*.md"), root / "CONTRIBUTING.md"]:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
