"""``python -m envforge``."""

import sys

from envforge.cli import main

sys.exit(main())
