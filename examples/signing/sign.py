"""Sign paths for audioproxy with Python's standard library.

    AP_KEY=... AP_SALT=... python3 sign.py /f:opus/br:96/plain/local://piece.wav ...

If audioproxy is installed, use `audioproxy.urls`: it builds the path too.
"""

import base64
import hashlib
import hmac
import os
import re
import sys


def sign(key_hex: str, salt_hex: str, path: str) -> str:
    """Return the path with its signature in front.

    Common mistakes:

    - hashing the hexadecimal text and not the decoded bytes
    - the standard alphabet with + and /, or keeping the padding
    - signing a decoded path, or a path with a host or a query

    Sign exactly the bytes of the request, from the slash after the signature on.
    """
    if not re.fullmatch("([0-9A-Fa-f]{2}){32,}", key_hex):
        raise ValueError("AP_KEY must be at least 32 bytes in hexadecimal digits")
    if not re.fullmatch("([0-9A-Fa-f]{2})+", salt_hex):
        raise ValueError("AP_SALT must be at least 1 byte in hexadecimal digits")
    # Visible ASCII without # and ?.
    if not re.fullmatch('/[!"$->@-~]*', path):
        raise ValueError("a path starts with a slash, is percent-encoded and has no query")
    message = bytes.fromhex(salt_hex) + path.encode("ascii")
    digest = hmac.new(bytes.fromhex(key_hex), message, hashlib.sha256).digest()
    return "/" + base64.urlsafe_b64encode(digest).decode("ascii").rstrip("=") + path


if __name__ == "__main__":
    try:
        for argument in sys.argv[1:]:
            print(sign(os.environ.get("AP_KEY", ""), os.environ.get("AP_SALT", ""), argument))
    except ValueError as error:
        sys.exit(f"sign.py: {error}")
