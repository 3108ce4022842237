"""Messages that may leave this machine: no credentials, no media bytes, not endless."""

from __future__ import annotations

import re
from typing import Final

MAX_LENGTH: Final = 500

_CREDENTIALS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)[^/\s@]*@")
_QUERY = re.compile(r"(?P<url>https?://[^\s?'\"]+)\?[^\s'\")]+")
_DATA = re.compile(r"data:(?P<type>[\w.+-]*/?[\w.+-]*)(?:;[\w=.+-]+)*,[^\s'\")]*")


def redact(message: str) -> str:
    """``message`` without URL logins, URL queries (signed links) and ``data:`` bytes, cut short."""
    clean = message[: 64 * MAX_LENGTH].encode("utf-8", "replace").decode("utf-8")
    clean = _DATA.sub(r"data:\g<type>,…", clean)
    clean = _CREDENTIALS.sub(r"\g<scheme>…@", clean)
    clean = _QUERY.sub(r"\g<url>?…", clean)
    return clean if len(clean) <= MAX_LENGTH else clean[: MAX_LENGTH - 1] + "…"
