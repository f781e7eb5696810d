"""``python -m graphpool`` is the command ``graphpool``."""

import sys


def main() -> int:
    """Run the command; it may be interrupted while its parts are imported, too."""
    try:
        from .cli import main as run_command

        return run_command()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
