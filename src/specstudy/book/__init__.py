"""What the book's pages call: a chapter's records under whichever profile has some, the heads' cards, the first page's answers."""

from specstudy.book.answers import answers, recorded_table
from specstudy.book.chapter import Chapter, open_chapter
from specstudy.book.heads import Heads, shipped_heads

__all__ = ["Chapter", "Heads", "answers", "open_chapter", "recorded_table", "shipped_heads"]
