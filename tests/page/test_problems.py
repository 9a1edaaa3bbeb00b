"""What goes wrong is told in the server's words, and no text is lost or read twice."""

import json

import pytest
from tests.page.visits import problem

pytestmark = [pytest.mark.page, pytest.mark.timeout(300)]

TEXT = "All that is written here is read once.\n"


def box(visit):
    return visit.page.get_by_label("Text to read").input_value()


@pytest.mark.parametrize(
    ("status", "slug", "title"),
    [
        (429, "rate_limited", "Your quota is used up"),
        (503, "overloaded", "The server is busy"),
        (503, "store_unavailable", "The store does not answer"),
        (504, "outcome_unknown", "Whether it was applied is not known"),
        (409, "in_flight", "The same key is being worked on"),
    ],
)
def test_what_passes_is_waited_for(visit, status, slug, title):
    """As long as the server says; then the same piece goes with the same key, and all is read once."""
    visit.refuse_appends(2, **problem(status, slug, title, **{"retry-after": "1"}))
    visit.send(TEXT)
    visit.page.locator("#sent").get_by_text(title).wait_for()
    visit.wait()
    assert len(visit.appends) == 3
    assert len({(append.text, append.key) for append in visit.appends}) == 1
    assert visit.text == TEXT
    assert visit.info()["position"] == len(TEXT)


def test_a_lost_answer_is_asked_for_again(visit):
    """The server read the piece, the connection broke: the repetition reads nothing twice."""
    lost = []

    def lose(route):
        if lost:
            route.continue_()
        else:
            lost.append(route.fetch().status)
            route.abort()

    visit.page.route("**/append", lose)
    visit.read(TEXT)
    assert lost == [200]
    assert len(visit.appends) == 2
    assert visit.text == TEXT
    assert visit.info()["position"] == len(TEXT)


@pytest.mark.parametrize(
    ("status", "slug", "title"),
    [
        (413, "too_large", "Over a limit"),
        (409, "model_mismatch", "The session belongs to another model"),
        (403, "forbidden", "The key may not do this"),
        (500, "internal_error", "A fault of the server"),
    ],
)
def test_what_does_not_pass_is_told(visit, status, slug, title):
    """With the detail and the request's id. It can be tried again, or stopped, which gives the text back."""
    visit.refuse_appends(2, **problem(status, slug, title, detail="65,537 tokens are over 65,536"))
    visit.send(TEXT)
    alert = visit.page.get_by_role("alert")
    alert.get_by_text(title).wait_for()
    told = alert.inner_text()
    assert "65,537 tokens are over 65,536." in told
    assert "Nothing was changed." in told
    assert "Request r-1." in told
    alert.get_by_role("button", name="Try again").click()
    alert.get_by_text(title).wait_for()
    visit.page.get_by_role("button", name="Stop").click()
    visit.page.locator("#sending").wait_for(state="hidden")
    assert box(visit) == TEXT
    assert len({append.key for append in visit.appends}) == 1
    visit.page.get_by_role("button", name="Read it").click()
    visit.wait()
    assert visit.text == TEXT


def test_a_session_that_is_gone_gives_the_text_back(visit):
    """Deleted by somebody else: what was read stays in view, and reading goes on in a new session."""
    visit.read(TEXT)
    session = visit.session
    visit.ask("DELETE", f"/sessions/{session}")
    visit.send("More.")
    visit.page.locator("#problem-title").get_by_text("The session is gone").wait_for()
    assert box(visit) == "More."
    assert visit.page.locator(f"[data-id='{session}']").count() == 0
    assert (visit.text, visit.marks) == (TEXT, ["the session is gone"])
    visit.page.get_by_role("button", name="Read it").click()
    visit.page.get_by_role("heading", name=session[:8]).wait_for(state="detached")
    visit.wait()
    assert visit.text == "More."


def test_a_refused_creation_leaves_the_text_in_the_box(visit):
    """Nothing was sent, so nothing is missing."""
    visit.page.route(
        "**/sessions", lambda route: route.fulfill(**problem(429, "rate_limited", "Your quota is used up"))
    )
    visit.send(TEXT)
    visit.page.get_by_role("alert").get_by_text("Your quota is used up").wait_for()
    assert box(visit) == TEXT
    assert visit.appends == []


def test_answers_of_a_proxy_are_problems_too(visit):
    """Whatever has no problem document is told by its status."""
    visit.refuse_appends(1, status=418, body="<h1>teapot</h1>", headers={"content-type": "text/html"})
    visit.send(TEXT)
    visit.page.get_by_role("alert").get_by_text("The server answered 418.").wait_for()
    visit.page.get_by_role("button", name="Try again").click()
    visit.wait()
    assert visit.text == TEXT


def test_a_wrong_key_is_asked_for_again(visited):
    """And the right one stays in this tab: a reload needs none, and it can be forgotten."""
    visit = visited()
    visit.page.goto(visit.url)
    for key in ("wrong-key-1", visit.key):
        visit.page.get_by_label("Key", exact=True).fill(key)
        visit.page.get_by_role("button", name="Use it").click()
        if key != visit.key:
            visit.page.get_by_text("The server does not know this key.").wait_for()
    visit.page.get_by_text("tiny on cpu").wait_for()
    visit.page.reload()
    visit.page.get_by_text("tiny on cpu").wait_for()
    assert visit.page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    visit.page.get_by_role("button", name="Forget the key").click()
    visit.page.get_by_label("Key", exact=True).wait_for()
    assert visit.page.evaluate("sessionStorage.length") == 0


def test_a_key_that_ends_meanwhile_holds_up_the_text(visit):
    """Reading goes on with the next key."""
    visit.refuse_appends(1, **problem(401, "unauthorized", "A key is needed"))
    visit.send(TEXT)
    visit.page.get_by_label("Key", exact=True).fill(visit.key)
    visit.page.get_by_role("button", name="Use it").click()
    visit.wait()
    assert visit.text == TEXT
    assert visit.info()["position"] == len(TEXT)


def test_an_answer_without_scores_shows_the_text(visit):
    """A repetition of a long answer has sums only: the text is there, uncoloured, and said to be."""

    def bare(route):
        answer = json.loads(route.fetch().text())
        for column in ("ids", "logprobs", "static_logprobs", "ranks", "entropies", "starts", "ends"):
            del answer[column]
        route.fulfill(json=answer)

    visit.page.route("**/append", bare)
    visit.read(TEXT)
    assert visit.text == TEXT
    assert visit.marks == ["read, but its scores were not kept:"]
    visit.page.unroute("**/append")
    visit.read(TEXT)
    assert visit.text == TEXT * 2


def test_markup_in_a_text_stays_text(visit):
    """And so do names that look like code."""
    text = "<img src=x onerror=alert(1)><script>alert(2)</script>&amp;\n"
    visit.read(text)
    assert visit.text == text
    assert visit.page.locator("#rows img, #rows script").count() == 0
