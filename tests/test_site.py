"""The documentation site: it builds without a warning, has every page and module, and loads nothing from other servers."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.site_pages import LIBRARY, api_page, folders
from tests.support import REPOSITORY
from tests.test_makefile import commands

LONGEST_README = 150
ORDER = ["Home", "Tutorials", "Guide", "Algorithms", "Extending", "Architecture", "Results", "Journal", "API"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    environment = os.environ | {"SITE_PACKAGES": "wrappers", "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", f"--site-dir={folder}"],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_built(site: Path) -> None:
    pages = [path.relative_to(REPOSITORY / "docs") for path in (REPOSITORY / "docs").rglob("*.md")]
    assert len(pages) > 10
    assert not [page for page in pages if not (site / page).with_suffix(".html").is_file()]


def test_the_first_page_is_the_readme_with_links_to_pages(site: Path) -> None:
    page = (site / "index.html").read_text()
    assert 'href="running.html#export"' in page
    assert 'href="CONTRIBUTING.html#prose"' in page
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= LONGEST_README


def test_the_pages_are_in_order(site: Path) -> None:
    tabs = re.findall(r'<li class="md-tabs__item.*?<a [^>]*>(.*?)</a>', (site / "index.html").read_text(), re.S)
    assert [tab.strip() for tab in tabs] == ORDER


def test_nothing_is_loaded_from_other_servers(site: Path) -> None:
    loaded = re.compile(r'<(?:script|img|iframe)[^>]* src="(?:https?:)?//|<link[^>]* href="(?:https?:)?//')
    pages = list(site.rglob("*.html"))
    assert not [page for page in pages if loaded.search(page.read_text())]


def test_the_api_pages_have_the_docstrings(site: Path) -> None:
    page = (site / "api" / "wrappers.html").read_text()
    assert "Types that all environment families share" in page
    assert 'id="wrappers.spec.VectorEnv.step"' in page


def test_every_module_has_a_docstring_and_a_place_on_one_api_page() -> None:
    files = [path.relative_to(REPOSITORY) for package in LIBRARY for path in (REPOSITORY / package).rglob("*.py")]
    names = [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in files]
    pages = "".join(api_page(folder) for package in LIBRARY for folder in folders(package))
    assert sorted(re.findall(r"^::: (.+)$", pages, re.M)) == sorted(names)
    assert not [path for path in files if not ast.get_docstring(ast.parse((REPOSITORY / path).read_text()))]


def test_no_docstring_has_an_index_that_markdown_takes_for_a_link() -> None:
    """The site with all API pages is strict too, but takes longer: `x[i][j]` there must be code."""
    found = []
    for package in LIBRARY:
        for path in (REPOSITORY / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    text = re.sub(r"`[^`]*`", "", ast.get_docstring(node) or "")
                    found += [f"{path}: {index[0]}" for index in re.finditer(r"\[[^\]\n]+\]\[[^\]\n]+\]", text)]
    assert not found


NAMED = re.compile(r"`((?:agents|benchmarks|learner|replay|tests|tools|workers|wrappers)/[\w/]+\.(?:py|json))`")


def test_files_that_pages_name_are_there() -> None:
    """But for those that a page tells the reader to write."""
    pages = [*(REPOSITORY / "docs").glob("*.md"), *(REPOSITORY / "docs" / "tutorials").glob("*.md"), *REPOSITORY.glob("*.md")]
    found = {}
    for page in pages:
        text = "" if page.name == "CHANGELOG.md" else page.read_text()
        written = {*re.findall(r"New file `([^`]+)`", text), "agents/NAME/agent.py"}
        if missing := [name for name in NAMED.findall(text) if name not in written and not (REPOSITORY / name).exists()]:
            found[page.name] = missing
    assert found == {}


def test_make_docs_builds_into_a_folder_that_git_ignores() -> None:
    assert commands("docs")[-1][-5:] == ["-m", "mkdocs", "build", "--strict", "--quiet"]
    assert "site/" in (REPOSITORY / ".gitignore").read_text().splitlines()
