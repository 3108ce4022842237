"""A run for scripts."""

from __future__ import annotations

from mlxq_producer.cli.output import print_json
from mlxq_producer.cli.view.base import View


class Events(View):
    """One JSON object a line on stdout for what is told; items are the command's to print."""

    def say(self, text: str) -> None:
        """An event of its own."""
        super().say(text)
        print_json({"type": "stage", "text": text})

    def note(self, text: str) -> None:
        """The same."""
        print_json({"type": "stage", "text": text})
