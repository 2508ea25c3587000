"""The progress bar, which has moved to `audioproxy.cli.output`."""

from audioproxy.cli.output import progress_bar as progress_bar
