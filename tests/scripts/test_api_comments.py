"""The filter by which Doxygen reads our headers' comments."""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "lib"))
from api_comments import documented  # noqa: E402

HEADER = """\
// What is here:
//   y = f(x)
#pragma once

namespace twell {

// A `pair` of `int`.
struct Pair {
  int first = 0;   // of two, at least <1>,
                   // and even
  int second = 0;
};

inline int sum(const Pair& pair) {
  // Of both.
  return pair.first + pair.second;  // never overflows
}
// Of nothing.
int none();

}  // namespace twell
"""

DOCUMENTED = """\
//! What is here:
//!   y = f(x)<br>
//! @file

namespace twell {

/// A <code>pair</code> of <code>int</code>.
struct Pair {
  int first = 0;   ///< of two, at least \\<1\\>,
                   ///< and even
  int second = 0;
};

inline int sum(const Pair& pair) {
  // Of both.
  return pair.first + pair.second;  // never overflows
}
/// Of nothing.
int none();

}  // namespace twell
"""


def test_comments_of_declarations_are_documentation():
    assert documented(HEADER.splitlines()) == DOCUMENTED.splitlines()


def test_public_headers_keep_their_lines():
    headers = [*ROOT.glob("include/twell/*.h"), *ROOT.glob("cuda/include/twell/*.h")]
    assert headers
    for header in headers:
        lines = header.read_text().splitlines()
        assert len(documented(lines)) == len(lines)
        assert "//! @file" in documented(lines), header.name
