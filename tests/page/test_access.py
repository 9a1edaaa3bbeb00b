"""The page by keyboard alone, for those who hear it, and for those who see colours otherwise."""

import shutil
import subprocess
import tarfile
from itertools import pairwise

import pytest

pytestmark = [pytest.mark.page, pytest.mark.timeout(300)]

AXE = "axe-core@4.14.1"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
TEXT = "The quick brown fox jumps over the lazy dog; what a surprise!\n" * 4
TABS = 60


def tab_to(visit, name):
    """Press Tab until the element of this name has the focus; gives what had it on the way."""
    seen = []
    for _ in range(TABS):
        visit.page.keyboard.press("Tab")
        seen.append(focused(visit))
        if name in seen[-1]:
            return seen
    pytest.fail(f"{name} is not reached: {seen}")


def focused(visit):
    """The name of the element that has the focus, as its label or content says."""
    return visit.page.evaluate(
        """() => {
          const at = document.activeElement;
          const label = at.labels?.[0]?.textContent ?? at.getAttribute("aria-label") ?? at.textContent;
          return label.trim().replace(/\\s+/g, " ");
        }"""
    )


def has_outline(visit):
    """Whether whoever looks sees where the focus is."""
    return visit.page.evaluate(
        """() => {
          const at = document.activeElement;
          const shown = at.type === "radio" ? at.nextElementSibling : at;
          return parseFloat(getComputedStyle(shown).outlineWidth) >= 2;
        }"""
    )


def test_key_and_text_by_keyboard(visited):
    """The key, then the text; nobody touches a mouse."""
    visit = visited()
    visit.page.goto(visit.url)
    visit.page.get_by_label("Key", exact=True).wait_for()
    press, type_ = visit.page.keyboard.press, visit.page.keyboard.type
    assert focused(visit) == "Key"
    type_(visit.key)
    press("Enter")
    visit.page.get_by_text("tiny on cpu").wait_for()
    tab_to(visit, "Text to read")
    type_(TEXT)
    press("Control+Enter")
    visit.wait()
    assert visit.text == TEXT


def read_by_keyboard(visit):
    """Have the text read, past the heat map, in a page just opened."""
    press = visit.page.keyboard.press
    visit.page.reload()
    visit.page.get_by_text("tiny on cpu").wait_for()
    tab_to(visit, "Skip to the heat map")
    press("Enter")
    visit.page.wait_for_timeout(100)
    tab_to(visit, "Text to read")
    visit.page.keyboard.type(TEXT)
    press("Control+Enter")
    visit.wait()


def test_tokens_by_keyboard(visit):
    """One after the other, line after line, in each view."""
    press = visit.page.keyboard.press
    read_by_keyboard(visit)
    for _ in range(TABS):
        press("Shift+Tab")
        if focused(visit) == "Token":
            break
    assert has_outline(visit)
    press("End")
    slider = visit.page.get_by_label("Token")
    assert slider.get_attribute("aria-valuetext").startswith("new line: Adapted ")
    press("ArrowLeft")
    assert slider.get_attribute("aria-valuetext").startswith("!: Adapted ")
    press("Home")
    press("Shift+Tab")
    press("Shift+Tab")
    press("ArrowRight")
    press("Shift+ArrowRight")
    assert slider.evaluate("(slider) => slider.valueAsNumber") > 0
    press("Shift+Tab")
    assert focused(visit) == "Adapted"
    assert has_outline(visit)
    press("ArrowRight")
    press("ArrowRight")
    assert visit.page.locator("#rows .side").count() == 2 * visit.page.locator("#rows .row").count()


def test_sessions_by_keyboard(visit):
    """Forked, reset and deleted; each question can be left."""
    press = visit.page.keyboard.press
    read_by_keyboard(visit)
    source = visit.session
    for verb in ("Fork", "Reset", "Delete"):
        visit.page.locator("li:has([aria-current]) .open").focus()
        tab_to(visit, f"{verb} ")
        assert has_outline(visit)
        press("Enter")
        if verb == "Fork":
            visit.page.locator("#rows .mark").filter(has_text="forked from").wait_for()
            assert visit.session != source
        else:
            visit.page.get_by_role("dialog").wait_for()
            press("Escape")
            visit.page.get_by_role("dialog").wait_for(state="hidden")
            assert f"{verb} " in focused(visit)
            press("Enter")
            tab_to(visit, f"{verb} it" if verb == "Delete" else verb)
            press("Enter")
            visit.page.get_by_role("dialog").wait_for(state="hidden")
    visit.page.get_by_role("heading", name="No session is open").wait_for()
    assert focused(visit) == "New session …"


@pytest.fixture(scope="session")
def axe(tmp_path_factory):
    """The source of axe-core, from npm's registry."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed: it fetches axe-core")
    folder = tmp_path_factory.mktemp("axe")
    packed = subprocess.run(["npm", "pack", "--silent", AXE], cwd=folder, capture_output=True, text=True)
    if packed.returncode:
        pytest.skip(f"{AXE} cannot be fetched from npm's registry")
    with tarfile.open(folder / packed.stdout.split()[-1]) as archive:
        return archive.extractfile("package/axe.min.js").read().decode()


def faults(visit, axe):
    """What axe finds when colours have settled: rule, impact and element."""
    # One that is cancelled, because its element goes, has ended too.
    visit.page.evaluate("Promise.allSettled(document.getAnimations().map((one) => one.finished))")
    visit.page.evaluate(axe)
    found = visit.page.evaluate(f"axe.run({{runOnly: {RULES}, resultTypes: ['violations']}})")
    return [
        (one["id"], one["impact"], node["target"], node.get("failureSummary", "")[:200])
        for one in found["violations"]
        for node in one["nodes"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing(visited, axe, scheme, width, capsys):
    """By day and by night, wide and narrow: asking for the key, empty, with text, asking, and refused."""
    visit = visited(color_scheme=scheme, width=width, bypass_csp=False)
    visit.page.goto(visit.url)
    visit.page.get_by_label("Key", exact=True).wait_for()
    states = {"key": faults(visit, axe)}
    visit.enter()
    states["empty"] = faults(visit, axe)
    visit.read(TEXT)
    for view in ("Adapted", "Both", "Saved"):
        visit.choose(view)
        states[view] = faults(visit, axe)
    visit.page.locator("#sessions-details").evaluate("(details) => { details.open = true; }")
    for verb in ("Reset", "Delete"):
        visit.act(verb)
        states[verb] = faults(visit, axe)
        visit.page.keyboard.press("Escape")
    visit.page.get_by_role("button", name="New session").click()
    states["new"] = faults(visit, axe)
    visit.page.keyboard.press("Escape")
    visit.page.route("**/append", lambda route: route.fulfill(status=418, body="no"))
    visit.send(TEXT)
    visit.page.get_by_role("alert").get_by_text("418").wait_for()
    states["problem"] = faults(visit, axe)
    with capsys.disabled():
        found = {state: [fault[0] for fault in those] for state, those in states.items()}
        print(f"\naxe, {scheme}, {width} px: {found}")
    assert states == {state: [] for state in states}


def luminance(colour):
    """Relative luminance (WCAG 2) of a colour given as red, green and blue, 0 to 255."""
    parts = [part / 255 for part in colour]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def legend_of(visit):
    """Colours of each step of the legend: of its text, and of what it stands on."""
    return visit.page.evaluate(
        """() => [...document.querySelectorAll("#legend span:not(.unit)")].map((step) => {
          const style = getComputedStyle(step);
          const sheet = getComputedStyle(document.getElementById("map")).backgroundColor;
          const back = style.backgroundColor === "rgba(0, 0, 0, 0)" ? sheet : style.backgroundColor;
          return [style.color, back].map((colour) => colour.match(/[\\d.]+/g).slice(0, 3).map(Number));
        })"""
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_scale_is_read_without_its_hues(visited, scheme):
    """Text on every level has contrast, and each level's lightness is a step on from the one before."""
    visit = visited(color_scheme=scheme)
    visit.enter()
    for view in ("Adapted", "Saved"):
        visit.choose(view)
        assert min(contrast(*step) for step in legend_of(visit)) >= 4.5
    visit.choose("Adapted")
    lightness = [luminance(back) for _, back in legend_of(visit)]
    assert lightness == sorted(lightness, reverse=scheme == "light")
    backs = [back for _, back in legend_of(visit)]
    assert min(contrast(one, other) for one, other in pairwise(backs)) > 1.08
    lines = "(steps) => steps.map((step) => getComputedStyle(step).textDecorationStyle)"
    assert visit.page.locator("#legend span").evaluate_all(lines)[4:7] == ["dotted", "solid", "double"]


def test_nothing_moves_for_those_who_want_no_motion(visited):
    """Transitions are for others."""
    durations = []
    for motion in ("reduce", "no-preference"):
        visit = visited(reduced_motion=motion)
        visit.enter()
        durations.append(
            visit.page.evaluate("getComputedStyle(document.getElementById('send')).transitionDuration")
        )
    assert durations[0] == "0s"
    assert durations[1] != "0s"


def test_reading_is_told_seldom(visit):
    """However many pieces arrive, the live region changes once in six seconds; its last word is the end."""
    visit.page.evaluate(
        """() => {
          window.told = [];
          const told = new MutationObserver(() => window.told.push([performance.now(), status_.textContent]));
          const status_ = document.getElementById("status");
          told.observe(status_, { childList: true, characterData: true, subtree: true });
        }"""
    )
    for _ in range(8):
        visit.read("a short text. ")
    visit.page.wait_for_timeout(7000)
    told = visit.page.evaluate("window.told")
    assert min(later - earlier for (earlier, _), (later, _) in pairwise(told)) > 5500
    assert told[-1][1].startswith("112 B read: ")
