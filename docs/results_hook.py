"""MkDocs hook: add `results/` to the site, and link its pages where the documentation names them."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

RESULTS = Path(__file__).resolve().parents[1] / "results"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and plots of `results/`."""
    for path in sorted([*RESULTS.glob("*.md"), *RESULTS.glob("*.svg")]):
        files.append(File.generated(config, f"results/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link `results/NAME.md` in the documentation, and pages of the documentation in the results."""
    if page.file.src_uri.startswith("results/"):
        page.meta["search"] = {"boost": 0.2}  # pages of the documentation first
        return markdown.replace("](../docs/", "](../")
    return re.sub(r"`(results/[\w-]+\.md)`", r"[`\1`](\1)", markdown)
