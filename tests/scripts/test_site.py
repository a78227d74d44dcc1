"""scripts/site: its contents, its list of headers, and its search for dead links."""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "lib" / "site"))
import sources  # noqa: E402
from links import dead_links  # noqa: E402


def test_every_page_is_in_the_contents(monkeypatch):
    assert sources.forgotten() == []
    monkeypatch.setitem(sources.CONTENTS, "Start", [])
    assert "docs/models" in sources.forgotten()


def test_headers_are_listed_with_what_they_have():
    assert "twell/layer.h" in sources.headers("include")
    for folder in ("include", "cuda/include"):
        for header in sources.headers(folder):
            assert 3 < len(sources.first_sentence(ROOT / folder / header)) < 200, header


def test_dead_links_are_found(tmp_path):
    (tmp_path / "b.html").write_text('<p id="here">b</p>')
    (tmp_path / "a.html").write_text(
        '<a href="b.html#here">1</a> <a href="b.html#gone">2</a> <a href="c.html">3</a>'
        '<a href="https://example.org/gone">4</a> <a href="#gone">5</a> <img src="d.svg">'
    )
    assert dead_links(tmp_path) == [
        "a.html: #gone",
        "a.html: b.html#gone",
        "a.html: c.html",
        "a.html: d.svg",
    ]
