"""Runs the notebooks of `docs/notebooks` in a Jupyter kernel, and writes what they print into them. A script.

    python docs/notebooks.py [NAME ...]

Needs `ipykernel` and a Java, as `make test` does. The tests run the notebooks in the same way.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "notebooks"
CELL_TIMEOUT_S = 300.0


class CellFailed(Exception):
    """Raised if a cell of a notebook raises; the text is the cell's and its error's."""


def run(path: Path, folder: Path) -> dict[str, Any]:
    """Run the notebook at `path` in a kernel of its own, with `folder` as its working directory.

    Returns the notebook with the outputs of its cells. Raises CellFailed.
    """
    from jupyter_client.manager import start_new_kernel

    notebook: dict[str, Any] = json.loads(path.read_text())
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(folder))
    try:
        for number, cell in enumerate(each for each in notebook["cells"] if each["cell_type"] == "code"):
            cell["execution_count"] = number + 1
            cell["outputs"] = outputs = []
            client.execute_interactive(
                "".join(cell["source"]),
                timeout=CELL_TIMEOUT_S,
                output_hook=lambda message, outputs=outputs: _keep(outputs, message),
            )
            failed = next((each for each in outputs if each["output_type"] == "error"), None)
            if failed is not None and "raises-exception" not in cell["metadata"].get("tags", ()):
                shown = "\n".join(failed["traceback"])
                raise CellFailed(f"{path.name}, cell {number + 1}:\n{''.join(cell['source'])}\n\n{shown}")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    return notebook


def _keep(outputs: list[dict[str, Any]], message: dict[str, Any]) -> None:
    kind, content = message["header"]["msg_type"], message["content"]
    if kind == "stream":
        # Spark's warnings at its start have paths of this machine, and say nothing of the notebook.
        if content["name"] == "stderr" or not content["text"].strip():
            return
        text = content["text"]
        if outputs and outputs[-1].get("name") == content["name"]:
            outputs[-1]["text"] = [*outputs[-1]["text"], *text.splitlines(keepends=True)]
        else:
            outputs.append(
                {"output_type": "stream", "name": content["name"], "text": text.splitlines(keepends=True)}
            )
    elif kind in ("execute_result", "display_data"):
        data = {name: value for name, value in content["data"].items() if name == "text/plain"}
        found = {"output_type": kind, "data": data, "metadata": {}}
        if kind == "execute_result":
            found["execution_count"] = content["execution_count"]
        outputs.append(found)
    elif kind == "error":
        outputs.append(
            {"output_type": "error", **{name: content[name] for name in ("ename", "evalue", "traceback")}}
        )


def main(names: list[str]) -> int:
    """Run the notebooks of these names, or all, and write them."""
    import tempfile

    for path in sorted(FOLDER.glob("*.ipynb")):
        if names and path.stem not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            found = run(path, Path(folder))
        path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
        print(path.name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
