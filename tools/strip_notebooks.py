"""Take outputs, execution counts and a viewer's own metadata out of the notebooks, as git keeps them.

.venv/bin/python tools/strip_notebooks.py            every notebook in notebooks/
.venv/bin/python tools/strip_notebooks.py FILE ...   these
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
"""Without a kernelspec, JupyterLab stops at a dialog that asks for one."""


def stripped(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook (nbformat 4, as JSON gives it) with its cells' sources and ids only. A new object."""
    cells = []
    for cell in notebook["cells"]:
        kept = {"cell_type": cell["cell_type"], "id": cell["id"], "metadata": {}, "source": cell["source"]}
        if cell["cell_type"] == "code":
            kept |= {"execution_count": None, "outputs": []}
        cells.append(kept)
    format_of = {"nbformat": notebook["nbformat"], "nbformat_minor": notebook["nbformat_minor"]}
    return {"cells": cells, "metadata": METADATA, **format_of}


def main(paths: list[str]) -> None:
    """Strip these files, or all notebooks, in place; says which ones changed."""
    for path in map(Path, paths) if paths else sorted(NOTEBOOKS.glob("*.ipynb")):
        before = path.read_text("utf-8")
        after = json.dumps(stripped(json.loads(before)), indent=1, ensure_ascii=False) + "\n"
        if after != before:
            path.write_text(after, "utf-8")
            print(f"stripped {path}")


if __name__ == "__main__":
    main(sys.argv[1:])
