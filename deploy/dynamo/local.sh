#!/usr/bin/env bash
# Two replicas of a model behind Dynamo's frontend on this machine, and no other service: deploy/dynamo/local.sh MODEL
#
# Workers find the frontend through a folder (DYN_FILE_KV), requests go over TCP. Takes latent-dynamo (see integrations/dynamo/README.md) and, in a
# Python environment, ai-dynamo==1.6.1. The frontend listens at port 8000.
set -euo pipefail
model=$1
here=$(cd "$(dirname "$0")/../.." && pwd)
dynamo_worker=${LATENT_DYNAMO:-$here/integrations/dynamo/target/release/latent-dynamo}
DYN_FILE_KV=${DYN_FILE_KV:-$(mktemp -d)}
export DYN_FILE_KV DYN_DISCOVERY_BACKEND=file DYN_REQUEST_PLANE=tcp DYN_EVENT_PLANE=zmq
# each has half of the cores
threads=$((($(nproc) + 1) / 2))

trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT
for _ in 1 2; do
    "$dynamo_worker" --model "$model" --threads "$threads" &
done
# a request whose worker is gone is answered by the other
python3 -m dynamo.frontend --http-port 8000 --router-mode kv --migration-limit 3
