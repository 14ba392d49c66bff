#!/bin/sh
# Sampler noise that respects edges: FID over eta and lam on a trained model, same seeds for all. Again and again:
#
#     benchmarks/sampler_noise.sh MODEL REFERENCE OUT [options of evaluate, such as --inception FILE]
#
# N, STEPS, ETAS and LAMS change the samples, the NFE, and the values. lam=inf, eta=1: the reverse SDE; eta=0: the flow.
set -eu
model=$1 reference=$2 out=$3
shift 3
mkdir -p "$out"
for eta in ${ETAS:-0 0.25 0.5 1}; do
    for lam in ${LAMS:-0.02 0.05 0.2 inf}; do
        if [ "$eta" = 0 ] && [ "$lam" != inf ]; then continue; fi # without noise there is one row
        name=eta-$eta-lam-$lam
        if [ -s "$out/$name.json" ]; then continue; fi
        ${ANISODIFF:-anisodiff} sample "$model" --n "${N:-10000}" --steps "${STEPS:-50}" --seed 0 \
            --sampler "churn(eta=$eta, lam=$lam)" --out "$out/$name.npz"
        ${ANISODIFF:-anisodiff} evaluate "$out/$name.npz" --reference "$reference" "$@" --json "$out/$name.part.json"
        mv "$out/$name.part.json" "$out/$name.json"
        rm "$out/$name.npz"
    done
done
echo "all of $out is there"
