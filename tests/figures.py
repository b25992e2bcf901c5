"""Reports without the drawing of their figures."""

import pytest


def stop_drawing(patch: pytest.MonkeyPatch) -> None:
    """Let all figures be empty files, which are written, linked and embedded like others."""
    patch.setattr("matplotlib.figure.Figure.savefig", lambda figure, file, **options: None)
    patch.setattr("matplotlib.figure.Figure.draw_without_rendering", lambda figure: None)
