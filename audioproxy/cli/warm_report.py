"""What ``audioproxy warm`` prints about each response: JSON for programs, or elements of a feed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from decimal import ROUND_HALF_UP, Decimal
from tempfile import NamedTemporaryFile
from typing import Any
from urllib.parse import urlsplit
from xml.sax.saxutils import escape

from audioproxy.cli.exit_status import UsageError
from audioproxy.cli.fetcher import Fetched, Fetcher, FetchFailed, normalize_url, redact_url
from audioproxy.cli.output import Form, Output
from audioproxy.cli.url_input import parse_url
from audioproxy.config import Config
from audioproxy.engine import Engine, build
from audioproxy.errors import Refusal, UndecodableSource, VideoSource
from audioproxy.grammar.option_parser import parse_expiry
from audioproxy.grammar.segments import split_target
from audioproxy.grammar.sources import read_source
from audioproxy.urls.signer import extensions_of

_ESCAPE = re.compile("%[0-9A-Fa-f]{2}")


def probing_engine(folder: str, reactor: Any, concurrency: int) -> Engine:
    """Return an engine that probes the files of a folder."""
    config = Config(allow_insecure=True, local_root=folder, max_probe_concurrency=concurrency)
    return Engine(build(config, reactor))


@dataclass(frozen=True, slots=True)
class ReportingFetcher:
    """Fetches URLs, and prints JSON or the elements of a feed for each.

    A body is kept in a temporary file until ffprobe has read its duration, so this needs no key and
    no source. The duration of an mp3 is that of its frames, which include the encoder's padding.
    """

    fetcher: Fetcher
    output: Output
    folder: str
    engine: Engine

    async def fetch(self, url: str) -> str:
        """Fetch a URL, print the report, and return the result, such as ``RENDERED``."""
        is_text = self.output.form is Form.TEXT
        with NamedTemporaryFile(dir=self.folder, buffering=0) as file:
            try:
                fetched = await self.fetcher.fetch(url, file)
                duration = await self._duration(os.path.basename(file.name))
                lines = list(_enclosure(url, fetched, duration)) if is_text else []
            except FetchFailed as error:
                self.output.row({"url": url, "status": error.status, "error": str(error)})
                raise
        seconds = None if duration is None else round(float(duration), 6)
        self.output.row({"url": url, **asdict(fetched), "duration": seconds}, *lines)
        signed = redact_url(url)
        if is_text and (found := _ESCAPE.search(signed)):
            in_source = _ESCAPE.search(f"/{signed}".partition("/plain/")[2])
            cure = "sign the URL with --encoded" if in_source else "use dl and cb without it"
            self.output.error(
                f"{signed}: some apps spell {found[0]} in another way, which is a 401; {cure}"
            )
        return fetched.result

    async def _duration(self, name: str) -> Decimal | None:
        """Return the duration of a file in the folder; None for one that is no audio."""
        source = read_source(b"plain", b"local://" + name.encode())
        await self.engine.starter.prepare()
        try:
            probe, _ = await self.engine.probe(source)
        except (UndecodableSource, VideoSource):
            return None
        except Refusal as error:
            raise FetchFailed(f"its duration cannot be read ({error.message})") from error
        # Without a stated length, ffprobe estimates the duration.
        return probe.description.duration


def _enclosure(url: str, fetched: Fetched, duration: Decimal | None) -> Iterator[str]:
    """Yield the elements of a feed's item, for a URL that directories and apps accept for long."""
    if fetched.bytes is None:
        raise FetchFailed(
            f"{fetched.status}: an enclosure needs a length; set AP_SERVE_MODE=proxy",
            fetched.status,
        )
    kind = fetched.content_type or ""
    extensions = [f".{each}" for each in extensions_of(kind)]
    if not extensions:
        raise FetchFailed(f"{kind or 'no Content-Type'}: an enclosure is audio", fetched.status)
    if not urlsplit(url).path.endswith(tuple(extensions)):
        wanted = f"a path that ends in {' or '.join(extensions)} is required for {kind}"
        raise FetchFailed(f"{wanted}; sign the URL with --file-name", fetched.status)
    if _expires(url):
        raise FetchFailed("exp: apps request an enclosure for years; sign the URL without it")
    address = escape(normalize_url(url), {'"': "&quot;"})
    yield f'<enclosure url="{address}" length="{fetched.bytes}" type="{kind}"/>'
    if duration is not None:
        seconds = duration.quantize(Decimal(1), ROUND_HALF_UP)
        yield f"<itunes:duration>{seconds}</itunes:duration>"


def _expires(url: str) -> bool:
    try:
        target = split_target(parse_url(url).signed)
    except UsageError:
        return False
    return target is not None and parse_expiry(target.options) is not None
