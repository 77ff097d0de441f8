"""``python -m logparity`` is the ``logparity`` command."""

from logparity.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
