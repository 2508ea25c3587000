"""Settings of a command, from the environment or a file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from audioproxy.cli.exit_status import UsageError
from audioproxy.config import Config, ConfigError, load
from audioproxy.grammar.request import SigningKeys
from audioproxy.urls import Signer

# The syntax that systemd, shells and this module read in the same way. systemd and shells differ on
# comments after a value, on backslashes, and on blanks and quotes within a value.
_ASSIGNMENT = re.compile(
    r"""([A-Za-z_]\w*)=(?:'([^'\\]*)'|"([^"\\$`]*)"|([\w./:,@%+=*\[\]-]*))""", re.ASCII
)
#: Variables that the service reads and that are not settings.
PROCESS_VARIABLES = ("PATH", "SSL_CERT_FILE", "TMPDIR")
_SIGNING_VARIABLES = ("AP_KEY", "AP_SALT", "AP_PREVIOUS_KEY", "AP_PREVIOUS_SALT")


def read_environment(environ: Mapping[str, str], file: str | None) -> dict[str, str]:
    """Return the environment, overridden by the settings in a file."""
    settings = dict(environ)
    if file is None:
        return settings
    try:
        text = Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--env-file: {file} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        number = error.object.count(b"\n", 0, error.start) + 1
        raise UsageError(f"--env-file: {file}, line {number}: UTF-8 is expected") from None
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if not line or line[0] in "#;":
            continue
        if (match := _ASSIGNMENT.fullmatch(line)) is None:
            raise UsageError(
                f"--env-file: {file}, line {number}: NAME=value is expected, with the value in"
                " '...' if it has characters other than letters, digits and -_./:,@%+=*[]"
            )
        settings[match[1]] = match[2] or match[3] or match[4] or ""
    return settings


def load_config(environment: Mapping[str, str]) -> Config:
    """Return the service's configuration, for a command that verifies no signature."""
    # Without a key, `load` requires AP_ALLOW_INSECURE.
    relaxed = {} if environment.get("AP_KEY") else {"AP_ALLOW_INSECURE": "1"}
    return load({**environment, **relaxed})[0]


def make_signer(environment: Mapping[str, str], base: str = "", encoded: bool = False) -> Signer:
    _require_secrets(environment)
    try:
        return Signer.from_env(environment, base, encoded=encoded)
    except ValueError as error:
        raise UsageError(str(error)) from None


def read_keys(environment: Mapping[str, str]) -> SigningKeys:
    """Return all pairs of key and salt that the service would accept."""
    _require_secrets(environment)
    try:
        config, _ = load({name: environment.get(name, "") for name in _SIGNING_VARIABLES})
    except ConfigError as error:
        raise UsageError(str(error)) from None
    return SigningKeys(config.signing_pairs)


def _require_secrets(environment: Mapping[str, str]) -> None:
    for name in ("AP_KEY", "AP_SALT"):
        if not environment.get(name):
            raise UsageError(
                f"{name}: not set; export AP_KEY and AP_SALT of the service, or name its"
                " file of settings with --env-file"
            )
