"""Spectrogram as SVG, in colors that are readable on white and on black."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("svg")
from matplotlib import pyplot
from numpy.typing import NDArray

_INK = "#7a828c"
# Level of a full-scale sine in a spectrogram of magnitudes, in dB.
_SCALE = -6.02
_STYLE = {
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.titlecolor": _INK,
    # No random values and no dates, so an unchanged plot is an unchanged file.
    "svg.fonttype": "none",
    "svg.hashsalt": "bench",
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
}


def spectrograms(panels: Mapping[str, NDArray[np.float64]], rate: int, path: Path) -> None:
    """Draw the spectrogram of each signal; the colors range from -150 dBFS to full scale."""
    with pyplot.rc_context(_STYLE):
        size = (3.0 * len(panels), 3.0)
        sheet, row = pyplot.subplots(1, len(panels), figsize=size, squeeze=False, sharey=True)
        for (name, samples), axes in zip(panels.items(), row[0], strict=True):
            axes.specgram(
                samples,
                NFFT=1024,
                Fs=rate,
                noverlap=512,
                window=np.kaiser(1024, 20),
                scale="dB",
                mode="magnitude",
                vmin=-150 + _SCALE,
                vmax=_SCALE,
            )
            axes.set_title(name.replace("`", ""), fontsize=9)
            axes.set_xlabel("s")
        row[0][0].set_ylabel("Hz")
        sheet.savefig(
            path, transparent=True, bbox_inches="tight", metadata={"Date": None, "Creator": None}
        )
        pyplot.close(sheet)
