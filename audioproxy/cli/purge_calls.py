"""The calls that remove all responses with a tag from caches in front (AP_CACHE_TAG_HEADER)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class PurgeCall(NamedTuple):
    """The call of one cache, as its own documentation has it. docs/caches.md lists the caches.

    :ivar header: the value of AP_CACHE_TAG_HEADER that the cache reads.
    :ivar command: of a shell. ``TAGS`` stands for the tags, which a separator is between, and other
        words in capitals for what the caller knows.
    :ivar most: tags in one call.
    """

    cache: str
    header: str
    command: str
    separator: str
    most: int = 100

    def commands(self, tags: Sequence[str]) -> list[str]:
        batches = [tags[start : start + self.most] for start in range(0, len(tags), self.most)]
        return [self.command.replace("TAGS", self.separator.join(batch)) for batch in batches]


_JSON = "-H 'Content-Type: application/json' -d"

CALLS = (
    PurgeCall("Akamai", "Edge-Cache-Tag", "akamai purge delete --tag TAGS", " "),
    PurgeCall(
        "Bunny",
        "CDN-Tag",
        f"curl -X POST -H 'AccessKey: KEY' {_JSON} '{{\"CacheTag\":\"TAGS\"}}'"
        " https://api.bunny.net/pullzone/ZONE/purgeCache",
        "",
        most=1,
    ),
    PurgeCall(
        "Cloudflare",
        "Cache-Tag",
        f"curl -X POST -H 'Authorization: Bearer TOKEN' {_JSON} '{{\"tags\":[\"TAGS\"]}}'"
        " https://api.cloudflare.com/client/v4/zones/ZONE/purge_cache",
        '","',
        most=30,
    ),
    PurgeCall(
        "CloudFront",
        "x-amz-meta-cache-tag",
        "aws cloudfront create-invalidation --distribution-id DISTRIBUTION --paths '#TAGS'",
        "' '#",
    ),
    PurgeCall(
        "Fastly",
        "Surrogate-Key",
        "curl -X POST -H 'Fastly-Key: TOKEN' -H 'Surrogate-Key: TAGS'"
        " https://api.fastly.com/service/SERVICE/purge",
        " ",
    ),
    PurgeCall(
        "Google Cloud CDN",
        "Cache-Tag",
        'curl -X POST -H "Authorization: Bearer $(gcloud auth print-access-token)"'
        f' {_JSON} \'{{"cacheTags":["TAGS"]}}\''
        " https://compute.googleapis.com/compute/v1/projects/PROJECT/global/urlMaps/MAP/invalidateCache",
        '","',
        most=10,
    ),
    PurgeCall(
        "KeyCDN",
        "Cache-Tag",
        f'curl -X DELETE -u KEY: {_JSON} \'{{"tags":["TAGS"]}}\''
        " https://api.keycdn.com/zones/purgetag/ZONE.json",
        '","',
    ),
    PurgeCall(
        "Varnish with xkey",
        "xkey",
        "curl -X PURGE -H 'xkey-purge: TAGS' http://127.0.0.1:6081/",
        " ",
    ),
)


def calls_for(header: str) -> list[PurgeCall]:
    """Return the calls of the caches that read a header; all calls where none of them does."""
    return [call for call in CALLS if call.header.lower() == header.lower()] or list(CALLS)
