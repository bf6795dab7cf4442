"""The folders of a wheel; all else of the package stands in pyproject.toml.

A wheel holds the program below `springbok/program`, because a package called `agents` or `learner` at the top of site-packages
would hide others of that name, or be hidden by them. The program runs from there as from a clone: its folder comes first on
Python's path. docs/architecture.md says more.
"""

from pathlib import Path

from setuptools import find_namespace_packages, setup

PROGRAM = "springbok.program"
NOT_INSTALLED = {"benchmarks", "clients", "docs", "tests", "springbok"}
ROOMS = {"presets", *(path.parent.name for path in Path().glob("*/*.py"))} - NOT_INSTALLED

PAGES = "clients.javascript"  # a server sends it to browsers
found = [name for name in find_namespace_packages() if name.partition(".")[0] in ROOMS or name == PAGES]
setup(
    packages=["springbok", PROGRAM, *(f"{PROGRAM}.{name}" for name in found)],
    package_dir={"springbok": "springbok", PROGRAM: ".", **{f"{PROGRAM}.{name}": name.replace(".", "/") for name in found}},
    package_data={"": ["*.json", "*.md", "*.html", "*.css", "*.js"]},
)
