"""How a medium is called in messages: short, and without anything secret."""

from __future__ import annotations

from urllib.parse import urlsplit

from mlxq_schemas import MediaRef

MAX_SHOWN = 200


def called(ref: MediaRef) -> str:
    """A medium's own name where its producer gave one, else its url in short."""
    return _cut(ref.name) if ref.name else shown(ref.url)


def shown(url: str) -> str:
    """A short name for a medium's url.

    A ``data:`` URI becomes its type and size, a download loses user, password, query (signed
    links carry their key there) and fragment.
    """
    kind, colon, rest = url.partition(":")
    if not colon:
        return _cut(url)
    match kind.lower():
        case "data":
            head, _, payload = rest.partition(",")
            size = _payload_size(head, payload)
            return f"data:{_cut(head.split(';')[0], 40)} ({size:,} bytes)"
        case "http" | "https":
            return _cut(_without_secrets(url))
        case "blob":
            return f"blob:{_cut(rest, 12)}"
        case _:
            return _cut(url)


def _payload_size(head: str, payload: str) -> int:
    if not head.endswith(";base64"):
        return len(payload)
    return len(payload) * 3 // 4 - payload[-2:].count("=")


def _without_secrets(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return url.partition("/")[0] + "//…"
    return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"


def _cut(text: str, length: int = MAX_SHOWN) -> str:
    """``text`` on one line, its end left off where it is long."""
    line = "".join(char if char.isprintable() else "?" for char in text[: length + 1])
    return line if len(line) <= length else line[:length] + "…"
