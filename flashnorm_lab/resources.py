"""Where the lab's own files lie: in a checkout (editable installs too) and in an installed wheel.

kernels/ and data/ are top-level folders of the repository and the only copies there. A wheel carries them
inside the package, as flashnorm_lab/_kernels and flashnorm_lab/_data.
"""

from pathlib import Path

from .errors import LabError

PACKAGE = Path(__file__).resolve().parent


def _folder(name: str) -> Path:
    checkout = PACKAGE.parent / name
    if (PACKAGE.parent / "pyproject.toml").is_file() and checkout.is_dir():
        return checkout
    installed = PACKAGE / f"_{name}"
    if installed.is_dir():
        return installed
    raise LabError(
        f"the lab's folder {name}/ is neither at {checkout} nor at {installed}: "
        "install flashnorm_lab again, or run it from a full clone"
    )


def kernels_folder() -> Path:
    """Folder that holds the CUDA C sources (*.cu, *.cuh, *.h).

    Raises:
        LabError: the folder is nowhere to be found.
    """
    return _folder("kernels")


def data_folder() -> Path:
    """Folder that holds the small data that the lab ships.

    Raises:
        LabError: the folder is nowhere to be found.
    """
    return _folder("data")


def notebooks_folder() -> Path:
    """Folder that holds the notebooks; only a clone has it, a wheel does not.

    Raises:
        LabError: this is not a clone.
    """
    checkout = PACKAGE.parent / "notebooks"
    if (PACKAGE.parent / "pyproject.toml").is_file() and checkout.is_dir():
        return checkout
    raise LabError(
        f"no notebooks at {checkout}: they come with a clone of flashnorm_lab, not with the wheel; "
        "clone the repository and run `make lab` in it"
    )
