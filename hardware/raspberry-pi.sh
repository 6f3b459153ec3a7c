#!/usr/bin/env bash
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# All 64-bit Arm cores have NEON. The Pi 5's Cortex-A76 also has dot products and half precision, for which llama.cpp
# repacks quantised weights; the Pi 4's Cortex-A72 has neither. The architecture is explicit rather than "native", so
# that a wheel built on one board works on all boards of its kind.
read_options "Set up a UE on a Raspberry Pi 5 or 4 with Raspberry Pi OS, 64 bit (bookworm). Drafts on the CPU." "$@"
need_machine aarch64 "a 64-bit system; flash Raspberry Pi OS (64-bit)"
case $(device_tree compatible) in
  *brcm,bcm2712*) arch=armv8.2-a+dotprod+fp16 ;;
  *brcm,bcm2711*) arch=armv8-a ;;
  *) die "no Raspberry Pi 5 or 4: /proc/device-tree/compatible is '$(device_tree compatible | paste -sd ' ')'" ;;
esac
found "board $(device_tree model)"
packages python3-venv gcc g++ iproute2 iperf3 iw
find_python
make_prefix
testbed_for ue -DGGML_NATIVE=OFF "-DGGML_CPU_ARM_ARCH=$arch" -DLLAVA_BUILD=OFF
service agent devices
tune
carry_out
