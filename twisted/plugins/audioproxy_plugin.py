"""Registers the ``audioproxy`` subcommand with twistd."""

from twisted.application.service import ServiceMaker

audioproxy = ServiceMaker(
    "audioproxy",
    "audioproxy.tap",
    "Serve audio that is rendered from signed URLs.",
    "audioproxy",
)
