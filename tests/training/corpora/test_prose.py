"""English as people write it, made from corpora as they are published."""

import numpy as np
import pytest
from training import prose


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (" = = Early life = = ", "Early life"),
        (
            " A role @-@ playing game ( 1 @,@ 000 $ 5 @.@ 2 ) , he said . ",
            "A role-playing game (1,000 $5.2), he said.",
        ),
        (' The game \'s " first " of 1939 \u2013 45 . ', 'The game\'s "first" of 1939\u201345.'),
        (" It is kept . The <unk> is not . It stays . ", "It is kept. It stays."),
    ],
)
def test_wikitext_is_restored(tokens, text):
    """Headings, joined tokens, brackets, quotes and ranges; no sentence with an unknown word is left."""
    assert prose.restored(f"{tokens}\n") == f"{text}\n"


def test_markup_goes_and_prose_stays():
    """Templates, tables, links, references and short lines go; text of links stays."""
    links = "a [[political philosophy|philosophy]] of [[society]]{{cite|a=b}}."
    line = f"'''Anarchism''' is {links}&lt;ref&gt;x&lt;/ref&gt; "
    xml = f'<text xml:space="preserve">{{{{box\n|a=[[b]]}}}}\n{line * 3}\n* short\n</text>'
    assert prose.without_markup(xml) == ("Anarchism is a philosophy of society. " * 3).strip() + "\n"


def test_articles_are_pages_of_a_dump_but_for_those_held_out(tmp_path):
    """Wiki text is escaped as in a dump; an article that a test text has, in any version, is left out."""
    page = "  <page>\n    <title>{}</title>\n    <text>{}</text>\n  </page>\n"
    (tmp_path / "dump.xml").write_text(
        f"<mediawiki>\n{page.format('Art', 'old')}{page.format('Alps', 'new')}"
    )
    (tmp_path / "Raith-Rovers.txt").write_text("'''Raith''' <ref>x</ref>")
    (tmp_path / "Aikido.txt").write_text("'''Aikido'''")
    wiki, dumped = prose.articles_of([tmp_path], {"Art", "Aikido"})
    assert "<title>Raith Rovers</title>" in wiki
    assert "'''Raith''' &lt;ref&gt;x&lt;/ref&gt;</text>" in wiki
    assert dumped == page.format("Alps", "new")


def test_a_tenth_is_in_lower_case_and_a_twentieth_in_capitals():
    """By passage, of which there are 600: within three standard deviations."""
    text = "".join(prose.varied(["A line of Text.\n" * 300_000]))
    lines = [line for line in text.splitlines() if line]
    assert len(lines) == 300_000
    assert sum(line.islower() for line in lines) / len(lines) == pytest.approx(0.10, abs=0.04)
    assert sum(line.isupper() for line in lines) / len(lines) == pytest.approx(0.05, abs=0.02)


def test_a_paragraph_that_shares_thirteen_words_is_dropped():
    """Thirteen words in a row, whatever their case and what stands between them; twelve may be shared."""
    words = [f"w{index}" for index in range(20)]
    forbidden = np.unique(prose.grams(words))
    twelve, thirteen = " ".join(words[:12]), ", ".join(words[5:18]).upper()
    assert prose.without([f"{twelve}\n{thirteen}\nother"], forbidden) == ([f"{twelve}\nother"], 1)
