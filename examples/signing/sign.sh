#!/bin/sh
# Sign paths for audioproxy with a POSIX shell and openssl.
#
#     AP_KEY=... AP_SALT=... sh sign.sh /f:opus/br:96/plain/local://piece.wav ...
#
# The key is on openssl's command line for a moment, where other users of the machine can see it.

set -eu
LC_ALL=C
export LC_ALL

fail() {
    printf 'sign.sh: %s\n' "$1" >&2
    exit 1
}

# Prints the path with its signature in front.
#
# Common mistakes:
#
# - -hmac "$AP_KEY", which uses the hexadecimal text as the key and not the decoded bytes
# - the salt as text
# - echo, which adds a line feed
# - the standard alphabet with + and /, or keeping the padding
# - signing a decoded path, or a path with a host or a query
sign() {
    case "$1" in
    *[!0-9A-Fa-f]*) fail 'AP_KEY must be in hexadecimal digits' ;;
    esac
    case "$2" in
    *[!0-9A-Fa-f]*) fail 'AP_SALT must be in hexadecimal digits' ;;
    esac
    if [ "${#1}" -lt 64 ] || [ $((${#1} % 2)) -ne 0 ]; then
        fail 'AP_KEY must be at least 32 bytes, of two digits each'
    fi
    if [ "${#2}" -lt 2 ] || [ $((${#2} % 2)) -ne 0 ]; then
        fail 'AP_SALT must be at least 1 byte, of two digits each'
    fi
    case "$3" in
    # Visible ASCII without # and ?.
    '' | [!/]* | *[!!-~]* | *[#?]*)
        fail 'a path starts with a slash, is percent-encoded and has no query'
        ;;
    esac
    signature=$({
        # A shell variable cannot hold a zero byte, so the salt is written to the pipe byte by byte, as
        # octal escapes.
        for byte in $(printf %s "$2" | sed 's/../& /g'); do
            printf "\\$(printf %03o "0x$byte")"
        done
        printf %s "$3"
    } | openssl dgst -sha256 -mac HMAC -macopt "hexkey:$1" -binary | openssl base64 -A |
        tr '+/' '-_' | tr -d '=')
    [ "${#signature}" -eq 43 ] || fail 'openssl made no signature'
    printf '/%s%s\n' "$signature" "$3"
}

for path in "$@"; do
    sign "${AP_KEY-}" "${AP_SALT-}" "$path"
done
