#!/usr/bin/env bash
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# The dependencies of a BS (vLLM, torch for its CUDA) are installed by scripts/environment.py, as in `make setup`. It
# installs from a copy of the checkout, since the service has no access to home directories.
read_options "Set up a BS on a server with an NVIDIA GPU and its driver: Debian 12, Ubuntu 22.04 or newer, x86-64." "$@"
need_machine x86_64 "a server"
[[ -d $FROM ]] || bad "--from must be a checkout: the set-up of a BS needs its scripts"
gpus=$(cat "$ROOT"/proc/driver/nvidia/gpus/*/information 2>/dev/null | sed -n 's/^Model:[[:space:]]*//p') || true
[[ -n $gpus ]] || die "no NVIDIA driver (/proc/driver/nvidia): install it first, then reboot"
found "GPU ${gpus//$'\n'/, }"
packages python3-venv python3-dev gcc g++ iproute2 iperf3
find_python
[[ -n $ROOT ]] || "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  die "a BS needs Python 3.11 or newer: apt-get install python3.11-venv, and --python python3.11"

stamp=$PREFIX/installed.txt
what="bs-cuda $(source_digest) packages $(sha256sum <"$HASHES" | cut -c 1-64)"
there=$PREFIX
while [[ ! -d $there ]]; do there=$(dirname "$there"); done
[[ -n $ROOT || -w $there ]] || as_root "$PREFIX"
if [[ -z $ROOT ]] && same_text "$stamp" "$what"; then
  found "testbed[bs-cuda] in $PREFIX/venv"
else
  plan rm -rf "$PREFIX/source"
  plan mkdir -p "$PREFIX/source"
  plan cp -r "$FROM"/{testbed,traces,sweeps,plans,hardware,scripts} "$PREFIX/source"
  plan cp "$FROM"/{pyproject.toml,constraints.txt,hashes.txt,README.md,LICENSE} "$PREFIX/source"
  plan "$PYTHON" "$PREFIX/source/scripts/environment.py" --venv "$PREFIX/venv" --extras bs-cuda
  plan "$PREFIX/venv/bin/testbed" --version
  plan write_text "$stamp" "$what"
fi
service bs devices
tune
carry_out
