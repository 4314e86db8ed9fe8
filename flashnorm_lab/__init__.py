"""FlashNorm lab: the algebra, the kernels, the two streams, and the race between them.

Importing this package loads nothing else. Its submodules are loaded on first use, so that
`import flashnorm_lab; flashnorm_lab.algebra.fold(...)` works and `import flashnorm_lab` stays light.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Load the submodule `flashnorm_lab.<name>`, or the function `record`, when it is first asked for.

    Raises:
        AttributeError: there is no such submodule.
    """
    if name == "record":
        return import_module(f"{__name__}.recording").record
    if not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
