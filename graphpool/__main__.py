"""``python -m graphpool`` is the command ``graphpool``."""

import sys

from .cli import main

sys.exit(main())
