#!/usr/bin/env bash
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# JetPack 6 is Jetson Linux 36 on Ubuntu 22.04, with Python 3.10 and CUDA 12; Orin's GPU is compute capability 8.7.
read_options "Set up a UE on a Jetson Orin (AGX, NX, Nano) with JetPack 6. Drafts on the GPU." "$@"
need_machine aarch64 "a Jetson"
case $(device_tree compatible) in
  *nvidia,tegra234*) found "board $(device_tree model)" ;;
  *) die "no Jetson Orin: /proc/device-tree/compatible is '$(device_tree compatible | paste -sd ' ')'" ;;
esac
numbers='1s/^# R\([0-9]*\) (release), REVISION: \([0-9.]*\),.*/\1.\2/p'
release=$(sed -n "$numbers" "$ROOT/etc/nv_tegra_release" 2>/dev/null) || true
[[ $release == 36.* ]] ||
  die "this script is for JetPack 6 (Jetson Linux 36), not '${release:-no Jetson Linux}': flash it with SDK Manager"
found "Jetson Linux $release (JetPack 6)"

needed=(python3-venv gcc g++ iproute2 iperf3 iw)
cuda=/usr/local/cuda
if [[ -x $ROOT$cuda/bin/nvcc ]]; then found "CUDA compiler $cuda/bin/nvcc"; else needed+=(nvidia-jetpack); fi
packages "${needed[@]}"
find_python
make_prefix
CUDA_ENV=("CUDACXX=$cuda/bin/nvcc")
testbed_for ue -DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=87 -DLLAVA_BUILD=OFF
service agent devices
tune
carry_out
