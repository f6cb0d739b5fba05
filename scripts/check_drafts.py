"""Run every check on the shipped heads and keep what was found beside them; the page on drafts shows it.

python scripts/check_drafts.py
"""

from __future__ import annotations

from specstudy.book.heads import record_checks, shipped_heads


def main() -> None:
    """See the module's text."""
    for path in record_checks(shipped_heads()):
        print(path)


if __name__ == "__main__":
    main()
