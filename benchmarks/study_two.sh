#!/bin/sh
# All methods on CIFAR-10, each by its best public recipe, in pieces of nine minutes (docs/comparing.md):
#
#     benchmarks/study_two.sh DATA OUT [options of compare]      again and again, until nothing is missing
#
# IMAGES, N and FOR change the images seen by each run, the samples measured, and the seconds of a piece.
set -eu
data=$1 out=$2
shift 2
begun=$(date +%s)
left() { echo $((${FOR:-540} - $(date +%s) + begun)); }

piece() { # SEEDS RUN… -- OPTIONS…: one call of compare within the time that is left
    seeds=$1
    shift
    if [ "$(left)" -lt 20 ]; then
        echo "time is up: the same command continues"
        exit 0
    fi
    ${ANISODIFF:-anisodiff} compare "$@" --data "$data" --out "$out" --seeds "$seeds" --keep-weights \
        --images "${IMAGES:-5120000}" --n "${N:-10000}" --for "$(left)s" --stage train,sample,evaluate
}

# the first run sets network, batch and optimizer for all; seed 1 is for the rows that lie close together
ve=cifar10-ve-tiny:name=ve
ode='cifar10-ve-tiny:sampler=ode;name=ve-ode'
ours=cifar10-anisotropic-gentle-tiny:name=anisotropic-gentle
flow=cifar10-flow-matching-tiny:name=flow-matching
uniform=cifar10-flow-matching-uniform-tiny:name=flow-matching-uniform
piece 0 "$ve" "$ode" "$ours" "$flow" "$uniform" \
    'cifar10-song-tiny:name=song' 'cifar10-song-tiny:sampler=pc;steps=2000;name=song-pc' \
    'cifar10-heat-dissipation-tiny:steps=200;prior=auto,gaussian;name=heat-dissipation' \
    'cifar10-edge-preserving-tiny:steps=750;name=edge-preserving' \
    'cifar10-edge-preserving-tiny:steps=50;name=edge-preserving-50' "$@"
piece 1 "$ve" "$ode" "$ours" "$flow" "$uniform" "$@"
${ANISODIFF:-anisodiff} compare --out "$out" --stage page
