#!/usr/bin/env bash
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

read_options "Set up a UE on a PC or laptop: Debian 12, Ubuntu 22.04 or newer, x86-64. Drafts on the CPU." "$@"
need_machine x86_64 "a PC or laptop"
packages python3-venv gcc g++ iproute2 iperf3 iw
find_python
make_prefix
testbed_for ue -DLLAVA_BUILD=OFF
service agent
tune
carry_out
