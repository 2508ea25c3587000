"""Creates and signs URLs: the library for client applications.

It needs only Python's standard library, and two settings of the service, AP_KEY and AP_SALT::

    import os
    from datetime import timedelta
    from audioproxy.urls import Signer, Variant, https, local, s3

    signer = Signer.from_env(os.environ, "https://audio.example")
    preview = Variant(f="opus", br=96, t=(30, 15), fade=(0.5, 2))
    signer.url(s3("masters", "piece.wav"), preview, expires_in=timedelta(hours=1))
    signer.info_url(local("masters/Größe.wav"))

`Signer`
    `Signer.url` signs a variant of a source, `Signer.audio_element` an ``<audio>`` element,
    `Signer.info_url` the source's info document, and `Signer.sign` any path.
`Variant`
    The options of a variant: format, quality, trim, fades, loudness and so on.
`s3`, `https`, `local`
    Sources. A source may also be text: ``"s3://masters/piece.wav"``.
`read_source`
    Checks the text of a source.

A wrong type is a ``TypeError`` that names the argument. A wrong value is a ``ValueError``. Whatever
the service refuses is refused here, with the same message. These three errors are ``ValueError``
too, and have the ``status`` and ``code`` of the service's response: `InvalidOptions`, `NotFound`
for a malformed source, and `Expired` for an expiry in the past.
"""

from audioproxy.urls.signer import Expired as Expired
from audioproxy.urls.signer import Signer
from audioproxy.urls.sources import NotFound as NotFound
from audioproxy.urls.sources import SourceLike as SourceLike
from audioproxy.urls.sources import https, local, read_source, s3
from audioproxy.urls.variant import InvalidOptions as InvalidOptions
from audioproxy.urls.variant import Number as Number
from audioproxy.urls.variant import Seconds as Seconds
from audioproxy.urls.variant import Variant

# `help` shows these names. The exceptions and the types of arguments are public too. But the
# inherited methods of the exceptions would fill the first pages; the text above describes them.
__all__ = ["Signer", "Variant", "https", "local", "read_source", "s3"]
