"""`python -m tfaccel` is the command `tfaccel`."""

import sys

from tfaccel.scripts.main import main

if __name__ == "__main__":
    sys.exit(main())
