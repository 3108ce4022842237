"""How a run over many items looks: live in a terminal, lines elsewhere, events for scripts."""

import sys

from rich.console import Console

from mlxq_producer.cli.view.base import View
from mlxq_producer.cli.view.board import Board, Counts, Entry
from mlxq_producer.cli.view.events import Events
from mlxq_producer.cli.view.lines import Lines
from mlxq_producer.cli.view.screen import Screen

__all__ = ["Board", "Counts", "Entry", "Events", "View", "live_view"]


def live_view(board: Board) -> View:
    """The view that fits where stderr goes."""
    return Screen(board, Console(stderr=True)) if sys.stderr.isatty() else Lines(board, sys.stderr)
