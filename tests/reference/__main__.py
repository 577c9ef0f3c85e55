"""`python -m tests.reference`: write the generated pages of docs/reference again."""

from __future__ import annotations

from tests.reference.pages import PAGES

if __name__ == "__main__":
    for path, render in PAGES.items():
        path.write_text(render())
