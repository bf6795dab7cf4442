"""Files, changes and commands of Markdown pages, applied to a copy of the program.

A block of Python after "New file `path`" is that file. In a diff, a line without a sign is searched for in the file, a `-` line
is removed, and a `+` line is inserted after the line before it, or before the next line that is searched for.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support import REPOSITORY

ROOMS = ("agents", "learner", "presets", "replay", "serve", "workers", "wrappers")
FILES = ("main.py", "option_flags.py", "setting.py", "checked_files.py")
BLOCK = re.compile(r"(?:^New file `(?P<path>[^`]+)`:\n\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.M | re.S)


def copy_program(folder: Path, *further: str) -> Path:
    """Copy the program into a folder, with further rooms. Returns the folder."""
    for room in (*ROOMS, *further):
        shutil.copytree(REPOSITORY / room, folder / room)  # with its bytecode, whose compilation would take seconds
    for name in FILES:
        shutil.copy(REPOSITORY / name, folder)
    return folder


def apply_diff(program: Path, text: str) -> None:
    for part in re.split(r"^--- .*\n\+\+\+ b/", text, flags=re.M)[1:]:
        name, _, body = part.partition("\n")
        path = program / name
        path.write_text(edited(path.read_text().splitlines(), body.splitlines()))


def edited(lines: list[str], diff: list[str]) -> str:
    position = 0  # in `lines`, behind the last line that was found or inserted
    waiting: list[str] = []  # lines to insert before the next line that is found
    anchored = False
    for line in diff:
        sign, content = line[:1], line[1:]
        if line.startswith("@@"):
            anchored = False
        elif sign == "+" and anchored:
            lines.insert(position, content)
            position += 1
        elif sign == "+":
            waiting.append(content)
        else:
            position = lines.index(content)
            lines[position:position] = waiting
            position += len(waiting)
            waiting, anchored = [], True
            if sign == "-":
                del lines[position]
            else:
                position += 1
    assert not waiting
    return "\n".join(lines) + "\n"


EVERY_COMMAND = """
import json, runpy, sys
from main import main
for command in json.loads(sys.argv[1]):
    print("RUN", flush=True)
    if command[0] == "-m":
        sys.argv = command[1:]
        try:
            runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            code = ended.code
    else:
        code = main(command)
    if code:
        sys.exit(code)
"""


def run(program: Path, *commands: str) -> list[str]:
    """Run commands of main.py or of modules in one process, which imports PyTorch once. Returns what each printed."""
    words = [shlex.split(command) for command in commands]
    assert all(each[:2] in (["python", "main.py"], ["python", "-m"]) for each in words)
    done = subprocess.run(
        [sys.executable, "-c", EVERY_COMMAND, json.dumps([each[1:] for each in words])],
        cwd=program,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"{commands}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    _, *printed = re.split(r"^RUN\n", done.stdout, flags=re.M)
    assert len(printed) == len(commands)
    return printed
