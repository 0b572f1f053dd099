#!/bin/sh
# Build time: measure this machine, compile the model, write a package and an archive of the cache.
# Usage: prepare.sh PACKAGE ARCHIVE; CALIBRATE_S is how long is measured.
set -eu
here=$(dirname "$0")
python=${PYTHON:-python}
"$python" -m mixbackend calibrate --force --budget-s "${CALIBRATE_S:-60}"
"$python" "$here/model.py" "$1"
"$python" -m mixbackend cache export "$2"
