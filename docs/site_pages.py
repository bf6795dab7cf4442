"""Hooks of mkdocs.yml: pages of the site that are no files of docs/, and links between files as links between pages."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

REPOSITORY = Path(__file__).resolve().parent.parent
LIBRARY = ("wrappers", "replay", "agents", "workers", "learner", "tools", "springbok")
ROOT_PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
"""File of the repository -> page of the site."""
PACKAGES = os.environ.get("SITE_PACKAGES", " ".join(LIBRARY)).split()
"""Packages with API pages. A test builds the site with one, because all of them take most of the time."""
LINK = re.compile(r"\]\(([^)\s#]+)")


def folders(package: str) -> list[str]:
    """Return the folders of a package that have modules, such as `agents/dqn`."""
    return sorted({path.parent.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / package).rglob("*.py")})


def api_page(folder: str) -> str:
    """Return the page of a folder: each of its modules in the order of names, the package itself first."""
    paths = sorted((REPOSITORY / folder).glob("*.py"), key=lambda path: (path.stem != "__init__", path.stem))
    names = [f"{folder}/{path.stem}".removesuffix("/__init__").replace("/", ".") for path in paths]
    return f"# {folder}\n\n" + "\n\n".join(f"::: {name}" for name in names) + "\n"


@event_priority(100)  # before mkdocstrings reads its settings
def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Append the API pages to the navigation, and let mkdocstrings read a copy of the library.

    Most folders of the library have no `__init__.py`, so mkdocstrings finds no modules there. They have one in the copy.
    """
    assert config.nav is not None
    config.nav.append({"API": [{name: [{each: f"api/{each}.md"} for each in folders(name)]} for name in PACKAGES]})
    copy = Path(tempfile.mkdtemp(prefix="springbok_api_"))
    for name in LIBRARY:
        shutil.copytree(REPOSITORY / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        for folder in folders(name):
            (copy / folder / "__init__.py").touch()
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = [str(copy)]
    config.extra["api_copy"] = str(copy)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, uri in ROOT_PAGES.items():
        files.append(File.generated(config, uri, content=(REPOSITORY / source).read_text()))
    for folder in (each for name in PACKAGES for each in folders(name)):
        files.append(File.generated(config, f"api/{folder}.md", content=api_page(folder)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the page with its links to files of the repository as links to pages of the site."""
    uri = page.file.src_uri
    source = next((name for name, page_uri in ROOT_PAGES.items() if page_uri == uri), f"docs/{uri}")

    def to_page(link: re.Match[str]) -> str:
        target = os.path.normpath(PurePosixPath(source).parent / link[1])
        found = ROOT_PAGES.get(target, target.removeprefix("docs/"))
        return f"]({os.path.relpath(found, PurePosixPath(uri).parent)}" if files.get_file_from_path(found) else link[0]

    return LINK.sub(to_page, markdown)


def on_post_build(config: MkDocsConfig) -> None:
    shutil.rmtree(config.extra["api_copy"])
