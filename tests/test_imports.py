"""Imports point one way, only the command line sees flags, and a worker starts without what it never needs."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.support import REPOSITORY

PACKAGES = ("wrappers", "replay", "agents", "serve", "workers", "learner", "tools", "springbok")
COMMAND_LINE = ("main", "option_flags")
NEUTRAL = ("setting", "checked_files")
"""The modules that every room may import."""
OURS = (*PACKAGES, *COMMAND_LINE, *NEUTRAL, "benchmarks", "tests")

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "wrappers": (),
    "replay": (),
    "agents": (
        "replay.trajectory",
        "replay.batch",
        "wrappers.answering",
        "wrappers.errors",
        "wrappers.spec",
        "wrappers.spaces",
    ),
    "serve": ("wrappers",),
    "workers": (
        "agents",
        "serve",
        "wrappers",
        "replay.trajectory",
        "replay.slot_store",
        "replay.earlier_files",
        "replay.interleave",
        "replay.recordings",
    ),
    "learner": ("wrappers", "replay", "agents", "serve", "workers"),
    "springbok": ("learner",),
    "tools": (
        "learner",
        "workers.base",
        "workers.cluster.connection",
        "workers.minari_import",
        "replay",
        "agents",
        "wrappers",
        "springbok.process",
        "main",
    ),
}
"""The packages of ours that a package may import, apart from itself."""


def imported_by(source: str) -> Iterator[str]:
    """Full names of all that a module imports, wherever in it; `from a import b` counts as `a.b`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where they point"
            yield from (f"{node.module}.{name.name}" for name in node.names)


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def forbidden(package: str, source: str) -> list[str]:
    """Imports of ours that this package may not make."""
    allowed = (package, *NEUTRAL, *MAY_IMPORT[package])
    ours = [name for name in imported_by(source) if any(is_within(name, part) for part in OURS)]
    return [name for name in ours if not any(is_within(name, part) for part in allowed)]


def modules(*packages: str) -> list[Path]:
    found = [path for package in packages for path in sorted((REPOSITORY / package).rglob("*.py"))]
    assert len(found) > len(packages)
    return found


def name_of(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


@pytest.mark.parametrize("path", modules(*PACKAGES), ids=name_of)
def test_imports_point_one_way(path: Path) -> None:
    assert forbidden(path.relative_to(REPOSITORY).parts[0], path.read_text()) == []


@pytest.mark.parametrize(
    ("package", "line", "fits"),
    [
        ("replay", "import torch", True),
        ("replay", "from replay.base import Replay", True),
        ("replay", "from setting import Setting", True),
        ("replay", "from wrappers.spec import EnvSpec", False),
        ("wrappers", "import replay", False),
        ("agents", "from replay.batch import Batch", True),
        ("agents", "from replay import Mixture", False),
        ("agents", "def f():\n    import workers.base", False),
        ("workers", "from replay.slot_store import SharedArrays", True),
        ("workers", "from replay.mixture import Mixture", False),
        ("workers", "from learner.settings.config import Config", False),
        ("learner", "from workers import WORKERS", True),
        ("learner", "import option_flags", False),
        ("learner", "from main import main", False),
        ("learner", "from tests.support import CATCH", False),
        ("learner", "import springbok", False),
        ("springbok", "import agents", False),
    ],
)
def test_the_rule_tells_right_from_wrong(package: str, line: str, fits: bool) -> None:
    assert (forbidden(package, line) == []) is fits


@pytest.mark.parametrize("path", modules(*PACKAGES), ids=name_of)
def test_only_the_command_line_sees_flags(path: Path) -> None:
    source = path.read_text()
    assert not [name for name in imported_by(source) if is_within(name, "absl")]
    assert "FLAGS" not in {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}


@pytest.mark.parametrize(
    ("package", "where"),
    [("ray", ("workers/cluster/", "tools/tuning/on_ray.py")), ("fsspec", ("learner/stores/store.py",))],
)
def test_an_optional_package_is_imported_in_few_places(package: str, where: tuple[str, ...]) -> None:
    tops = {path: {top_of(name) for name in imported_by(path.read_text())} for path in modules(*PACKAGES)}
    importing = {name_of(path) for path, names in tops.items() if package in names}
    assert importing
    assert {name for name in importing if not name.startswith(where)} == set()


def top_of(name: str) -> str:
    return name.split(".", 1)[0]


STEP = """
import sys, torch, main, learner.train, learner.launch
from types import SimpleNamespace
from agents.engine.optimizers import make_optimizer
module = torch.nn.Linear(2, 1)
module(torch.ones(2)).backward()
for name in ("adam", "rmsprop"):
    make_optimizer(SimpleNamespace(optimizer=name, adam_eps=1e-8, rmsprop_eps=0.01), [module]).step()
print(*(name in sys.modules for name in ("ray", "s3fs", "torch._dynamo")))
"""


def test_a_run_imports_no_optional_package_and_its_optimiser_no_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", STEP], cwd=REPOSITORY, capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout.split() == ["False"] * 3


def names_in(node: ast.AST) -> Iterator[str]:
    """As `imported_by`, without what only a type checker imports."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield from imported_by(ast.unparse(child))
        elif not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from names_in(child)


def circle_of(sources: Mapping[str, str]) -> list[str]:
    """Modules that import each other in a circle, also within functions; none if there is no circle. sources: by module."""
    imports: dict[str, set[str]] = {}
    for module, source in sources.items():
        names = set(names_in(ast.parse(source)))
        imports[module] = {name if name in sources else name.rpartition(".")[0] for name in names} & sources.keys() - {module}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("room", ["agents", "learner", "replay", "tools"])
def test_a_room_imports_itself_in_no_circle(room: str) -> None:
    paths = {name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in modules(room)}
    assert circle_of({module: path.read_text() for module, path in paths.items()}) == []


@pytest.mark.parametrize(
    ("line", "circle"),
    [
        ("import a.c", True),
        ("def f():\n    from a.c import g", True),
        ("from a import c", True),
        ("if TYPE_CHECKING:\n    from a.c import G", False),
        ("from a.d import h", False),
    ],
)
def test_a_circle_is_found(line: str, circle: bool) -> None:
    assert bool(circle_of({"a.b": line, "a.c": "from a.b import f", "a.d": "import os"})) is circle


def test_every_folder_with_code_has_a_rule() -> None:
    folders = {path.parent.name for path in REPOSITORY.glob("*/*.py")}
    assert folders - {"tests", "benchmarks", "docs"} == set(PACKAGES)
    assert {path.stem for path in REPOSITORY.glob("*.py")} == {*COMMAND_LINE, *NEUTRAL, "setup"}


def test_the_python_interface_is_imported_without_the_program() -> None:
    program = "import sys, springbok; print([name for name in ('torch', 'learner', 'agents', 'main') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_worker_starts_without_what_only_the_learner_needs() -> None:
    never = ("tensorboard", "matplotlib", "PIL", "absl", "imageio_ffmpeg", "learner")
    program = f"import sys; import workers.processes.worker; print([name for name in {never!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, timeout=200, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_run_needs_no_package_of_a_server() -> None:
    program = (
        "import sys\n"
        "for name in ('msgpack', 'uvicorn', 'uvloop', 'httptools', 'websockets'): sys.modules[name] = None\n"
        "import main; main.prepare(['main.py', '--op_mode=train', '--env=Catch-v0', '--nopreflight'])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
