"""The ``logparity`` command: parse, call one function, return an exit code.

Exit codes: 0 fine, 1 a threshold was exceeded, 2 wrong use or a failed run, 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError
from pydantic import ValidationError
from rich.console import Console

from logparity import __version__
from logparity.cli.analyze import analyze
from logparity.cli.doctor import doctor
from logparity.cli.export import export
from logparity.cli.plan import plan
from logparity.cli.report import report
from logparity.cli.score import score
from logparity.cli.train import train
from logparity.errors import LogparityError

app = App(
    name="logparity",
    help=(
        "Token log-probs in model precision for RL post-training, and a token-by-token comparison of trainer and "
        "rollout engine.\n\nStart with: logparity train examples/grpo_cpu.toml --dry-run"
    ),
    version=__version__,
    result_action="return_value",
)
for command in (train, score, analyze, export, report, plan, doctor):
    app.command(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: words after the program's name; None takes them from the process.

    Returns:
        The exit code.
    """
    errors = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)
    try:
        code = app(arguments, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        errors.print(f"error: {_one_line(error)}")
        return 2
    except LogparityError as error:
        errors.print(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        errors.print("interrupted")
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 2
    return code if isinstance(code, int) else 0


def _one_line(error: CycloptsError) -> str:
    """The first problem; pydantic spreads one over several lines."""
    if isinstance(error.__cause__, ValidationError):
        problem = error.__cause__.errors()[0]
        return f"--{'.'.join(map(str, problem['loc']))}: {problem['msg']}, got {problem['input']!r}."
    return " ".join(str(error).split())
