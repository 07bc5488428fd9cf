"""Makes a page of each notebook in `docs/notebooks`: a hook of MkDocs, which `mkdocs build` loads.

The page has the text, the code and the outputs of the notebook, and a link to the notebook itself.
"""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter


def page_of(notebook: Path) -> str:
    """The notebook as Markdown, with the link below its heading."""
    text, _ = MarkdownExporter().from_filename(str(notebook))
    heading, _, rest = text.lstrip().partition("\n")
    return f"{heading}\n\n[Download this notebook]({notebook.name})\n{rest}"


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages to the files of the site."""
    for notebook in sorted((Path(config.docs_dir) / "notebooks").glob("*.ipynb")):
        name = f"notebooks/{notebook.stem}.md"
        files.append(File.generated(config, name, content=page_of(notebook)))
    return files
