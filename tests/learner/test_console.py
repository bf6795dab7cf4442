"""Lines of the log show no credentials, whichever code wrote them."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from learner.console import log_to_console, log_to_file


def test_credentials_of_addresses_reach_neither_console_nor_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log_to_console(1)
    log_to_file(tmp_path / "log.txt")
    try:
        raise ConnectionError("ftp://user:secret@host/path is away")
    except ConnectionError:
        logging.getLogger("springbok").exception("%s failed", "sftp://user:secret@host")
    for text in (capsys.readouterr().out, (tmp_path / "log.txt").read_text()):
        assert "sftp://***@host failed" in text
        assert "ftp://***@host/path is away" in text
        assert "secret" not in text
