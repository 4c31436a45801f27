"""A real browser, and the router's fixtures for what it looks at."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from e2e.cluster import Progress
from e2e.cluster.debian import ensure
from tests.router.conftest import pytest_asyncio_loop_factories, site

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["pytest_asyncio_loop_factories", "site"]

START_S = 60.0
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-port=0")


@pytest.fixture(scope="session")
def chromium() -> str:
    """Chromium of the distribution, installed now if it is missing."""
    ensure({"chromium": "chromium"}, Progress("browser"))
    return "chromium"


@pytest.fixture
def devtools(chromium: str, tmp_path: Path) -> Iterator[int]:
    """The port at which a browser of the test's own takes orders."""
    command = [chromium, *FLAGS, f"--user-data-dir={tmp_path}", "about:blank"]
    browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    told = tmp_path / "DevToolsActivePort"
    deadline = time.monotonic() + START_S
    while not (told.exists() and told.read_text().strip()):
        assert browser.poll() is None, "the browser ended"
        assert time.monotonic() < deadline, "the browser does not start"
        time.sleep(0.1)
    yield int(told.read_text().split()[0])
    browser.terminate()
    browser.wait(timeout=20)
