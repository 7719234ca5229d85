#!/usr/bin/env bash
# Sets up one TPU VM: run it on every worker of a slice, from any folder.
#
#     bash txl_keras/tpu_configs/setup_tpu_vm.sh
#
# It makes a virtual environment with the TPU build of TensorFlow and this
# package, which stays where it is. To be run again after an error; what is
# there already is kept. What may be set before it:
#
#     PYTHON              the Python to use, 3.11 or later
#     VENV                folder of the environment; default: ~/txl_venv
#     TENSORFLOW_VERSION  default: 2.20.0, the newest TPU build
#     LIBTPU_VERSION      default: 0.0.14, the oldest that build accepts. It
#                         accepts all later ones, but 0.0.51 lacks what it
#                         calls, such as ConfigureDistributedTpuOp_DoWork
#     JAX_VERSION         default: none. --attention=pallas needs 0.10.2, and
#                         libtpu 0.0.40, as 0.0.36 cannot read its kernels
set -euo pipefail

VENV=${VENV:-$HOME/txl_venv}
TENSORFLOW_VERSION=${TENSORFLOW_VERSION:-2.20.0}
LIBTPU_VERSION=${LIBTPU_VERSION:-0.0.14}
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

fail() {
  echo "setup_tpu_vm.sh: $*" >&2
  exit 1
}

is_recent() {
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
  local name
  for name in "${PYTHON:-}" python3.12 python3.11 python3.13 python3; do
    if [[ -n $name ]] && is_recent "$name"; then
      command -v "$name"
      return
    elif [[ -n $name && $name == "${PYTHON:-}" ]]; then
      break # what was asked for is not replaced in silence
    fi
  done
  fail "Python 3.11 or later is needed. Found: ${PYTHON:-python3} is" \
    "$("${PYTHON:-python3}" --version 2>&1 || true)." \
    "On Ubuntu: sudo apt-get install python3.11-venv; or give another" \
    "by PYTHON=PATH."
}

[[ $(uname -sm) == "Linux x86_64" ]] ||
  fail "TPU VMs are Linux x86_64; this is $(uname -sm)."
[[ -f $repository/setup.py ]] || fail "There is no setup.py in $repository."

if [[ ! -x $VENV/bin/python ]]; then
  python=$(find_python)
  echo "A virtual environment in $VENV, of $python"
  "$python" -m venv "$VENV" ||
    fail "No virtual environment. On Ubuntu: sudo apt-get install" \
      "$(basename "$python")-venv; then delete $VENV and run this again."
fi
is_recent "$VENV/bin/python" ||
  fail "$VENV has an old Python. Delete it, or give another by VENV=PATH."
pip() {
  "$VENV/bin/python" -m pip --disable-pip-version-check "$@"
}
# Two builds of TensorFlow overwrite each other's files, and taking one away
# takes files of the other.
if pip show --quiet tensorflow 2>/dev/null; then
  fail "$VENV has the distribution tensorflow, which has no TPU. Delete" \
    "$VENV, or give another by VENV=PATH, and run this again."
fi

echo "TensorFlow $TENSORFLOW_VERSION for TPUs, libtpu $LIBTPU_VERSION"
pip install --quiet --upgrade pip
pip install --quiet "tensorflow-tpu==$TENSORFLOW_VERSION" \
  "libtpu==$LIBTPU_VERSION"

# setup.py asks for tensorflow, another distribution than tensorflow-tpu: pip
# would install it over the TPU build. So: the package alone, then all else
# that it asks for, and nothing that would bring tensorflow along.
echo "txl_keras of $repository (pip will say that tensorflow is not installed)"
pip install --quiet --no-deps --editable "$repository"
requirements=$(mktemp)
trap 'rm -f "$requirements"' EXIT
"$VENV/bin/python" - >"$requirements" <<'EOF'
import importlib.metadata

from pip._vendor.packaging.requirements import Requirement

for line in importlib.metadata.requires("txl_keras"):
    requirement = Requirement(line)
    # A marker is that of an extra.
    if not requirement.marker and requirement.name != "tensorflow":
        print(requirement)
EOF
if [[ -n ${JAX_VERSION:-} ]]; then
  echo "jax==$JAX_VERSION" >>"$requirements"
fi
pip install --quiet --requirement "$requirements" \
  "tensorflow-tpu==$TENSORFLOW_VERSION" "libtpu==$LIBTPU_VERSION"
if pip show --quiet tensorflow 2>/dev/null; then
  fail "A requirement of setup.py brought tensorflow along, over the TPU" \
    "build. $VENV cannot be used."
fi

# TensorFlow looks for libtpu.so where this says, not in the environment.
library=$("$VENV/bin/python" -c \
  'import libtpu; print(libtpu.get_library_path())')
grep -q "^export TPU_LIBRARY_PATH=" "$VENV/bin/activate" ||
  echo "export TPU_LIBRARY_PATH='$library'" >>"$VENV/bin/activate"
# TensorFlow imports jax where it is, and jax would take the TPU for itself.
grep -q "^export JAX_PLATFORMS=" "$VENV/bin/activate" ||
  echo "export JAX_PLATFORMS=cpu" >>"$VENV/bin/activate"

# What is asked for, as it is installed; no TPU is touched.
TPU_LOAD_LIBRARY=0 TF_CPP_MIN_LOG_LEVEL=2 "$VENV/bin/python" - <<'EOF'
import importlib.metadata

import keras
import tensorflow as tf

import txl_keras.models  # noqa: F401

print(
    f"Ready: TensorFlow {tf.__version__}, Keras {keras.__version__}, "
    f"libtpu {importlib.metadata.version('libtpu')}"
)
EOF
echo "Next: source $VENV/bin/activate"
