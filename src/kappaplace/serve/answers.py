"""Answers as they go over the wire: nothing unknown as NaN, and no path of this machine."""

from __future__ import annotations

from typing import Any

from kappaplace.serve.served_map import Found, ServedMap


def localization(found: Found, served: ServedMap) -> dict[str, Any]:
    """One answer, as `LocalizationOut` describes it."""
    decided = found.decided
    values = decided.answer.to_dict()
    for match in values["matches"]:
        del match["image"]
        match["thumbnail"] = thumbnail_address(served, match["reference"])
    return {
        "map": served.name,
        "version": found.version,
        "max_risk": decided.max_risk,
        "guaranteed": decided.guaranteed,
        **values,
    }


def thumbnail_address(served: ServedMap, reference: int) -> str:
    """Where the small picture of a reference is found."""
    from urllib.parse import quote

    return f"/v1/references/{reference}/thumbnail?map={quote(served.name, safe='')}"
