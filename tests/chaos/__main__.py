"""``python -m chaos``, in the folder ``tests``: prints what was done and what came of it."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from dataclasses import fields
from pathlib import Path

from chaos.kinds import KINDS, Kinds, kinds_left_out
from chaos.run import Outcome, Quotas, Run


def main() -> int:
    """Exit status 0 if all quotas were met and nothing is lost, doubled, wrong or left over."""
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    for quota in fields(Quotas):
        parser.add_argument(f"--{quota.name}", type=int, default=quota.default)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--keep", type=Path, help="keep logs and data in this folder")
    names = ", ".join(KINDS)
    parser.add_argument("--without", default="", help=f"kinds of faults to leave out: {names}")
    parser.add_argument("--only", default="", help="the kinds of faults to do, and no others")
    options = parser.parse_args()
    try:
        without = kinds_left_out(options.without, options.only)
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no process stays behind
    quotas = Quotas(**{quota.name: getattr(options, quota.name) for quota in fields(Quotas)})
    with tempfile.TemporaryDirectory(prefix="mlxq-chaos-") as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        outcome = Run(quotas, folder, Kinds(quotas.seed, without)).run()
    print(json.dumps(outcome.figures, indent=1) if options.json else table(outcome))
    for problem in outcome.problems[:50]:
        print(problem, file=sys.stderr)
    return 0 if outcome.clean else 1


def table(outcome: Outcome) -> str:
    """The figures as a Markdown table."""
    rows = [f"| {name} | {value} |" for name, value in outcome.figures.items()]
    return "\n".join(["| | |", "|---|---|", *rows])


if __name__ == "__main__":
    sys.exit(main())
