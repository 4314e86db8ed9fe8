"""`python -m flashnorm_lab` is `flashnorm-lab`."""

import sys

from .cli import main

sys.exit(main())
