"""A headless Chromium, for pictures of a report and for its tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["chromium"]


@contextmanager
def chromium() -> Iterator[Any]:
    """Start the browser that FREDSIM_BROWSER names, else one of the system's, else playwright's own; end it at last.

    Raises ImportError without playwright, and its Error if there is no such browser.
    """
    from playwright.sync_api import sync_playwright

    names = ("chromium", "chromium-browser", "google-chrome")
    path = os.environ.get("FREDSIM_BROWSER") or next(filter(None, map(shutil.which, names)), None)
    with sync_playwright() as started:
        opened = started.chromium.launch(executable_path=path, args=["--no-sandbox"], timeout=120_000)
        yield opened
        opened.close()
