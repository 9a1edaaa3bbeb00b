"""A server of several models: a session is made for the one that is chosen, and the page says whose it is."""

import pytest
from tests.page.visits import Visit

from rlstm_server.bench.process import running

pytestmark = pytest.mark.page


@pytest.fixture
def visit(browser, tiny_checkpoint):
    """A visit to a server of two."""
    with running({"model": f"{tiny_checkpoint},bytes-small", "durability": "memory"}) as server:
        context = browser.new_context()
        visit = Visit(context.new_page(), server.url, server.keys[0])
        visit.watch(context)
        visit.enter()
        yield visit
        context.close()
    assert visit.complaints == []


def test_a_session_of_the_chosen_model(visit):
    """Its rules are offered with it; what is open says by which model it is read."""
    visit.read("here. ")
    assert visit.info()["model"] == "tiny"
    visit.page.get_by_role("button", name="New session").click()
    dialog = visit.page.get_by_role("dialog")
    rules = dialog.get_by_label("Learns by").locator("option")
    before = rules.all_text_contents()
    dialog.get_by_label("Model").select_option("bytes-small")
    assert rules.all_text_contents() != before
    dialog.get_by_role("button", name="Create").click()
    visit.page.get_by_text("bytes-small on cpu").wait_for()
    visit.read("there. ")
    info = visit.info()
    assert info["model"] == "bytes-small"
    assert info["adaptation"]["kind"] == "subspace"


def test_one_model_is_no_question(browser, served):
    """Where there is nothing to choose, nothing is asked."""
    context = browser.new_context()
    visit = Visit(context.new_page(), served.url, served.keys[0])
    visit.enter()
    visit.page.get_by_role("button", name="New session").click()
    assert not visit.page.get_by_label("Model").is_visible()
    context.close()
