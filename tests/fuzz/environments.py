"""Environments: any text gives a configuration or a list of problems, both without secrets."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from audioproxy.config import VARIABLES, Config, ConfigError, Problem, load
from tests.fuzz.draws import check_words, outcome

#: Inserted into every secret; hexadecimal, so that a valid key stays valid.
CANARY = "c0ffee5ec2e7"
SECRET = {
    "AP_KEY",
    "AP_SALT",
    *(name for name in VARIABLES if name.endswith(("_KEY", "_KEY_ID", "_TOKEN"))),
}
#: Settings whose value is a URL: its userinfo is secret.
URLS = {"AP_S3_ENDPOINT", "AP_VARIANT_S3_ENDPOINT", "AP_ALLOW_ORIGIN", "AP_VARIANT_STORE"}

Load = Callable[[Mapping[str, str]], tuple[Config, tuple[Problem, ...]]]


def check_environment(data: bytes, load: Load = load) -> None:
    """Assert that settings give a configuration or problems, and that no secret is revealed.

    All problems and warnings have to be printable lines.

    :param data: lines such as ``AP_PORT=4000``.
    """
    environ = environment(data)
    found = outcome(lambda: load(environ), ConfigError)
    if isinstance(found, ConfigError):
        lines = (*found.problems, *found.warnings)
        assert found.problems
    else:
        assert not isinstance(found, Exception)
        config, lines = found
        assert config.key is not None or config.allow_insecure
        assert 0 <= config.ready_queue_threshold <= config.queue_size
        assert CANARY not in repr(config), "the configuration shows a secret"
    for line in map(str, lines):
        assert CANARY not in line, line
        check_words(line, longest=2000)
        assert line.partition(":")[0].strip("'"), line


def environment(data: bytes) -> dict[str, str]:
    """Parse lines into an environment, with a canary in every secret."""
    environ = {}
    for line in data.decode("utf-8", "surrogateescape").replace("\0", "").split("\n"):
        name, _, value = line.partition("=")
        if name in SECRET and value:
            half = len(value) // 4 * 2
            value = value[:half] + CANARY + value[half:]
        elif name in URLS and "@" in value and not value.startswith("file:///"):
            # If a password contains a slash, the text before the slash looks like a host. That text
            # is secret, too.
            value = value.replace("://", f"://{CANARY}", 1)
        environ[name] = value
    return environ
