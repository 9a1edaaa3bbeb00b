"""The page in a browser: text is read, sessions forked, reset and deleted; the numbers are the server's."""

import pytest

pytestmark = [pytest.mark.page, pytest.mark.timeout(300)]

RHYME = "Eins, zwei, drei; 🦊 läuft herbei.\n" * 3
LONG = "".join(f"line {number}: the quick brown föx 🦊 jumps over the lazy dog\n" for number in range(50))


def cells(visit):
    return int(visit.page.get_by_label("Token").get_attribute("max")) + 1


def test_typed_text_is_read_and_coloured(visit):
    """Every character is there and is one cell; the figures are what the server says of the session."""
    visit.read(RHYME)
    assert visit.text == RHYME
    assert cells(visit) == len(RHYME)
    assert visit.page.locator(".row span[class^=level]").count() > 10
    totals = visit.info()["totals"]
    assert totals["bytes"] == len(RHYME.encode())
    assert visit.page.locator("#figure-adapted").text_content() == (
        f"{totals['adapted_bits'] / totals['bytes']:.2f}"
    )
    assert visit.page.locator("#figure-static").text_content() == (
        f"{totals['static_bits'] / totals['bytes']:.2f}"
    )
    assert visit.page.get_by_label("Text to read").input_value() == ""


def test_a_token_is_told_by_mouse(visit):
    """What the pointer stands on, in the session's numbers and not only in colours."""
    visit.read(RHYME)
    box = visit.page.locator("#rows .side").bounding_box()
    visit.page.mouse.move(box["x"] + 3, box["y"] + 10)
    visit.page.locator("#tip").wait_for()
    told = visit.page.locator("#tip").text_content()
    assert told.startswith("TokenEAdapted")
    assert "bits" in told
    visit.page.mouse.click(box["x"] + 3, box["y"] + 10)
    assert visit.page.get_by_label("Token").get_attribute("aria-valuetext").startswith("E: Adapted ")
    assert visit.page.locator(".cursor").count() == 1


def test_views_show_the_same_text(visit):
    """Adapted, static, both side by side, and what was saved."""
    visit.read(RHYME)
    for view, sides in (("Static", 1), ("Both", 2), ("Saved", 1), ("Adapted", 1)):
        visit.choose(view)
        assert visit.page.locator("#rows .side").count() == sides
        assert visit.text == RHYME
    visit.choose("Saved")
    assert visit.page.locator(".row span[class^=change]").count() > 0


def test_charts_show_each_part(visit):
    """What a byte costs by each part of the mixture, in the session's numbers, and the experts' weights."""
    visit.read(RHYME * 4)
    totals = visit.info()["totals"]
    curve = visit.page.locator("#curve").get_attribute("aria-label")
    for part in ("adapted", "memory", "weights", "static"):
        assert f"{part} {totals[f'{part}_bits'] / totals['bytes']:.2f}" in curve
    weights = visit.page.locator("#weights").get_attribute("aria-label")
    assert [name in weights for name in ("static", "rate", "memory")] == [True] * 3


def test_long_text_goes_in_pieces(visit):
    """Of at most 2 kB, cut between characters, each with a key of its own, one after the other."""
    visit.read(LONG)
    sizes = [len(append.text.encode()) for append in visit.appends]
    assert max(sizes) <= 2048
    assert "".join(append.text for append in visit.appends) == LONG == visit.text
    assert len({append.key for append in visit.appends}) == len(sizes) > 2
    assert [append.final for append in visit.appends] == [False] * (len(sizes) - 1) + [True]
    assert visit.most_under_way == 1
    assert visit.info()["totals"]["bytes"] == len(LONG.encode())
    assert visit.page.locator("#curve path.line").count() == 4
    assert visit.page.locator("#weights path.area").count() == 3


def test_reading_pauses_and_stops(visit):
    """A pause sends nothing more; a stop puts what was not read back into the box."""
    text = 2 * LONG
    gate = visit.hold_appends()
    visit.send(text)
    gate.let()
    gate.wait()
    visit.page.get_by_role("button", name="Pause").click()
    gate.let()
    visit.page.wait_for_timeout(1000)
    assert len(visit.appends) == 2
    visit.page.get_by_role("button", name="Go on").click()
    gate.wait()
    visit.page.get_by_role("button", name="Stop").click()
    gate.let()
    visit.page.locator("#sending").wait_for(state="hidden")
    rest = visit.page.get_by_label("Text to read").input_value()
    assert len(visit.appends) == 3
    assert 0 < len(rest) < len(text)
    assert visit.text + rest == text


def test_text_may_be_read_without_learning(visit):
    """Then the session scores it and takes no step."""
    visit.page.get_by_label("learn from it").uncheck()
    visit.read(RHYME)
    assert [append.learn for append in visit.appends] == [False]
    assert visit.info()["totals"]["updates"] == 0


def test_a_file_is_streamed(visit, tmp_path):
    """Chosen by its button; what is no text is refused in words."""
    path = tmp_path / "rhyme.txt"
    path.write_text(RHYME)
    visit.page.locator("#file").set_input_files(path)
    visit.wait()
    assert visit.text == RHYME
    path.write_bytes(b"\xff\xfe\x00")
    visit.page.locator("#file").set_input_files(path)
    visit.page.get_by_text("The file is not text.").wait_for()
    assert visit.text == RHYME


def test_a_fork_goes_its_own_way(visit):
    """It has read what its source had read, and what it reads then the source does not."""
    visit.read("one. ")
    source = visit.session
    visit.act("Fork")
    visit.page.locator("#rows .mark").wait_for()
    assert visit.session != source
    assert visit.marks == [f"forked from {source[:8]}"]
    visit.read("two. ")
    assert visit.text == "one. two. "
    assert visit.info()["position"] == 10
    visit.page.get_by_role("button", name=source[:8], exact=False).first.click()
    visit.page.get_by_role("heading", name=source[:8]).wait_for()
    assert visit.text == "one. "
    assert visit.info()["position"] == 5


def test_a_reset_forgets_what_was_learned(visit):
    """The weights of its experts are equal again; the text stays, with a mark."""
    visit.read(RHYME)
    assert visit.info()["norm_ratio"] > 0
    visit.act("Reset")
    visit.page.get_by_role("dialog").get_by_role("button", name="Reset").click()
    visit.page.locator("#rows .mark").wait_for()
    assert visit.marks == ["forgot what it learned and what it read"]
    assert visit.text == RHYME
    assert visit.info()["norm_ratio"] == 0
    visit.read("more")
    assert visit.text == RHYME + "more"


def test_deleting_asks_first(visit):
    """Kept where the question is answered so; gone for good otherwise."""
    visit.read(RHYME)
    session = visit.session
    visit.act("Delete")
    visit.page.get_by_role("dialog").get_by_role("button", name="Keep it").click()
    visit.page.get_by_role("dialog").wait_for(state="hidden")
    visit.page.wait_for_timeout(300)
    assert visit.ask("GET", f"/sessions/{session}").status_code == 200
    visit.act("Delete")
    visit.page.get_by_role("dialog").get_by_role("button", name="Delete it").click()
    visit.page.get_by_role("heading", name="No session is open").wait_for()
    assert visit.ask("GET", f"/sessions/{session}").status_code == 410
    assert visit.page.locator(f"[data-id='{session}']").count() == 0


def test_a_question_that_is_left_and_asked_again_at_once_takes_its_answer(visit):
    """A browser tells a frame late that the first was left."""
    visit.read(RHYME)
    visit.page.evaluate(
        """() => {
          const ask = () => document.querySelector("li:has([aria-current]) [data-verb=delete]").click();
          ask();
          document.querySelector("dialog[open]").close();
          ask();
        }"""
    )
    visit.page.wait_for_timeout(300)
    visit.page.get_by_role("dialog").get_by_role("button", name="Delete it").click()
    visit.page.get_by_role("heading", name="No session is open").wait_for()


def test_a_session_is_made_as_asked(visit):
    """With a name, a rule of the model's, and a number of experts."""
    visit.page.get_by_role("button", name="New session").click()
    dialog = visit.page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("my-novel")
    dialog.get_by_label("Learns by").select_option(index=1)
    dialog.get_by_label("Experts").select_option("4")
    dialog.get_by_role("button", name="Create").click()
    visit.page.get_by_role("heading", name="my-novel").wait_for()
    info = visit.info()
    adaptation = info["adaptation"]
    assert info["name"] == "my-novel"
    assert (adaptation["kind"], adaptation["experts"]) == ("output_bias", 4)
    visit.read(RHYME)
    assert visit.page.locator("#weights path.area").count() == 5


def test_a_session_that_was_read_elsewhere_says_so(visit):
    """Its address opens it; what this page was not given is a mark, before it was opened and later."""
    visit.read("here. ")
    session = visit.session
    visit.ask("POST", f"/sessions/{session}/append", json={"text": "there. "})
    visit.read("here again. ")
    assert visit.marks == ["7 tokens were read elsewhere"]
    assert visit.text == "here. here again. "
    visit.page.reload()
    visit.page.get_by_role("heading", name=session[:8]).wait_for()
    assert visit.marks == ["25 tokens were read before"]


def test_what_was_sent_keeps_its_place_when_another_session_is_opened(visit):
    """Reading goes on in its own session."""
    visit.read("first. ")
    first = visit.session
    visit.page.get_by_role("button", name="New session").click()
    visit.page.get_by_role("dialog").get_by_role("button", name="Create").click()
    visit.page.get_by_role("heading", name=first[:8]).wait_for(state="detached")
    visit.read("second. ")
    assert visit.text == "second. "
    visit.page.locator(f"[data-id='{first}'] .open").click()
    visit.page.get_by_role("heading", name=first[:8]).wait_for()
    assert visit.text == "first. "


def test_a_session_of_the_chosen_model(visited, serve, tiny_checkpoint):
    """Its rules are offered with it; what is open says whose it is. Of one model nothing is asked."""
    visit = visited()
    visit.enter()
    visit.page.get_by_role("button", name="New session").click()
    assert not visit.page.get_by_label("Model").is_visible()
    with serve(tiny_checkpoint, "bytes-small") as server:
        visit = visited(server=server)
        visit.enter()
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
        assert (info["model"], info["adaptation"]["kind"]) == ("bytes-small", "subspace")
