"""Whether the drafts that records were measured with are those of this checkout: a head that is trained further keeps its name."""

from __future__ import annotations

from collections.abc import Iterable

from specstudy.catalog import load_draft
from specstudy.catalog.materialise import same_content
from specstudy.errors import AssetError, ConfigError
from specstudy.records.schema import Record


def other_drafts(records: Iterable[Record]) -> dict[str, str]:
    """Drafts by name that were served from other content than this checkout has under that name, with the folder each was served from.

    Only where both are known: nothing is said of a record whose folder's name holds no hash, nor of a draft that isn't shipped.
    """
    served = {(record.draft, folder) for record in records if record.draft is not None and (folder := record.draft_folder) is not None}
    return {draft: folder for draft, folder in sorted(served) if _differs(draft, folder)}


def _differs(draft: str, folder: str) -> bool:
    try:
        return same_content(load_draft(draft), folder) is False
    except (AssetError, ConfigError):
        return False
