"""`python -m stoker` is the command `stoker`."""

import sys

from .cli import main

sys.exit(main())
