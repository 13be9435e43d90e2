"""``python -m tensorplay``: see ``cli``."""

from __future__ import annotations

import sys

from tensorplay.cli import main

if __name__ == "__main__":
    sys.exit(main())
