"""Chromium without a window, and a server of a small model for it to visit."""

import shutil

import pytest
from tests.page.visits import PATIENCE_MS, Visit

from rlstm_server.bench.process import running

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="session")
def browser():
    """The browser."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium: apt-get install --no-install-recommends chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def served(tiny_checkpoint):
    """A server with keys, in a process of its own."""
    with running({"model": tiny_checkpoint, "durability": "memory"}) as server:
        yield server


@pytest.fixture
def visited(browser, served):
    """Give what opens a browser's page, not yet anywhere; whatever it complained of fails the test."""
    contexts, visits = [], []

    def visit(*, width=1280, height=800, **options):
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        context.set_default_timeout(PATIENCE_MS)
        visit = Visit(context.new_page(), served.url, served.keys[0])
        visit.watch(context)
        contexts.append(context)
        visits.append(visit)
        return visit

    yield visit
    complaints = [visit.complaints for visit in visits]
    for context in contexts:
        context.close()
    assert complaints == [[] for _ in visits]


@pytest.fixture
def visit(visited):
    """A visit that has begun: the page is open, and has its key."""
    visit = visited()
    visit.enter()
    return visit
