#!/bin/sh
# Latent space on photographs of 128², in pieces (docs/latent.md): an autoencoder, what it loses, its edges, four
# processes in its latents, two in pixels.
#
#     benchmarks/latent.sh TRAIN TEST OUT [options of compare]      again and again, until nothing is missing
#
# TRAIN and TEST are prepared datasets. FOR: seconds of a piece. AE: images that the autoencoder sees. BUDGET, PIXELS:
# training time of a run in latents and in pixels. N: samples measured. MEASURE: options of evaluate, such as
# --inception FILE.
set -eu
train=$1 test=$2 out=$3
shift 3
begun=$(date +%s)
anisodiff=${ANISODIFF:-anisodiff}
left() { echo $((${FOR:-540} - $(date +%s) + begun)); }
enough() { # SECONDS: end this piece where less is left
    if [ "$(left)" -lt "$1" ]; then
        echo "time is up: the same command continues"
        exit 0
    fi
}

enough 20
mkdir -p "$out"
if [ ! -f "$out/autoencoder.done" ]; then
    # interrupted, it saves and exits with 130
    timeout --signal=INT "$(left)" $anisodiff autoencoder train --data "$train" --out "$out/autoencoder" \
        --set factor=4 --set channels=4 --images "${AE:-2000000}" ${AE_SET:-} || { echo "the same command continues"; exit 0; }
    touch "$out/autoencoder.done"
fi
enough 60
$anisodiff autoencoder reconstruct "$out/autoencoder" --data "$test" --out "$out/reconstructions" --json \
    >"$out/reconstructions.json"
cat "$out/reconstructions.json"
enough 60
if [ ! -f "$out/reconstructions-report.json" ]; then
    $anisodiff evaluate "$out/reconstructions" --reference "$test" --json "$out/reconstructions-report.json" ${MEASURE:-}
fi
${PYTHON:-python3} "$(dirname "$0")/latent_edges.py" "$test" "$out/autoencoder" --json "$out/edges.json"

study() { # NAME BUDGET RUN… -- OPTIONS…
    name=$1 budget=$2
    shift 2
    enough 30
    $anisodiff compare "$@" --data "$train" --out "$out/$name" --budget "$budget" --n "${N:-5000}" --keep-weights \
        --for "$(left)s"
}
# the first run sets network, batch and optimizer for all
study latents "${BUDGET:-10min}" scenes128-ve-latent:name=ve \
    scenes128-anisotropic-gentle-latent:name=anisotropic-gentle scenes128-anisotropic-latent:name=anisotropic \
    scenes128-flow-matching-latent:name=flow-matching --set latent.autoencoder="$out/autoencoder" \
    --edit "$test" --strokes 8 --edit-n 500 "$@"
study pixels "${PIXELS:-20min}" scenes128-ve:name=ve scenes128-anisotropic-gentle:name=anisotropic-gentle \
    --edit "$test" --strokes 8 --edit-n 500 "$@"
