"""Chromium without a window, and a server of a small model for it to visit."""

import shutil
from contextlib import contextmanager

import pytest
from tests.page.visits import PATIENCE_MS, Visit
from tests.servers import serving

KEY = "the-key-of-the-page"
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
def serve(tmp_path_factory):
    """Give what runs a server with a key, of these models."""

    @contextmanager
    def running(*models):
        folder = tmp_path_factory.mktemp("server")
        with serving(folder, *models, "--durability", "memory", RLSTM_API_KEYS=KEY) as server:
            assert server.url, server.errors()
            yield server

    return running


@pytest.fixture(scope="session")
def served(serve, tiny_checkpoint):
    """A server of one model."""
    with serve(tiny_checkpoint) as server:
        yield server


@pytest.fixture
def visited(browser, served):
    """Give what opens a browser's page, not yet anywhere; whatever it complained of fails the test."""
    contexts, visits = [], []

    def visit(*, server=served, width=1280, height=800, **options):
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        context.set_default_timeout(PATIENCE_MS)
        visit = Visit(context.new_page(), server.url, KEY)
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
