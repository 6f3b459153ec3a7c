# shellcheck shell=bash
# Functions shared by the set-up scripts. They inspect the system first and put the missing steps on a list; nothing is
# changed until the list is complete. A dry run prints the steps, a real run prints and executes them.
#
# Stdout: `= ...` for things already in place, `+ COMMAND` for steps, and a final line. Output of commands goes to stderr.

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CHECKOUT=$(dirname "$HERE")
CONSTRAINTS=$CHECKOUT/constraints.txt
HASHES=$CHECKOUT/hashes.txt
BUNDLED=(traces sweeps plans hardware/profiles) # data files that a wheel contains besides the package
PREFIX=/opt/testbed
STATE=/var/lib/testbed
PYTHON=''
FROM=$CHECKOUT
ROOT='' # inspected instead of /, in a dry run
DRY='' SERVICE='' TUNE='' PACKAGES=yes FRESH=''
PLAN=() NEEDS_ROOT=()
MB_PER_COMPILER=1500  # memory to compile one of llama.cpp's larger files

OPTIONS="  --dry-run       print the steps without changing anything
  --prefix DIR    installation directory (default $PREFIX)
  --from PATH     wheel of the testbed, or checkout (default: the checkout of this script)
  --python PATH   Python for the virtual environment (default: python3 of this system)
  --service       install and enable the systemd service
  --tune          for measurements: governor 'performance', Wi-Fi power saving off
  --no-packages   do not install Debian packages; report missing ones
  --root DIR      inspect DIR instead of /; with --dry-run only"

die() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

bad() {
  printf '%s: %s (see --help)\n' "$(basename "$0")" "$*" >&2
  exit 2
}

found() { printf '= %s\n' "$*"; }

# plan COMMAND...: add a step to the list.
plan() { PLAN+=("$(printf '%q ' "$@" | sed 's/ $//')"); }

# as_root WHY: note that a step needs root.
as_root() { NEEDS_ROOT+=("$*"); }

read_options() {
  local about=$1
  shift
  while (($#)); do
    case $1 in
      --dry-run) DRY=yes ;;
      --service) SERVICE=yes ;;
      --tune) TUNE=yes ;;
      --no-packages) PACKAGES= ;;
      --prefix | --from | --python | --root)
        if (($# < 2)) || [[ $2 == -* ]]; then bad "$1 needs a value"; fi
        case $1 in
          --prefix) PREFIX=${2%/} ;;
          --from) FROM=$2 ;;
          --python) PYTHON=$2 ;;
          --root) ROOT=${2%/} ;;
        esac
        shift
        ;;
      -h | --help)
        printf '%s\n\nUsage: %s [OPTIONS]\n\n%s\n' "$about" "$(basename "$0")" "$OPTIONS"
        exit 0
        ;;
      *) bad "unknown option $1" ;;
    esac
    shift
  done
  [[ -z $ROOT || -n $DRY ]] || bad "--root needs --dry-run"
  [[ $PREFIX == /* && $PREFIX != *[[:space:]]* ]] || bad "--prefix takes an absolute path without spaces, not '$PREFIX'"
  if [[ -n $SERVICE && $PREFIX =~ ^/(home|root|run/user)(/|$) ]]; then
    bad "--service needs a --prefix outside home directories, which the service cannot access"
  fi
  [[ -d $FROM || -f $FROM ]] || bad "--from $FROM: no such wheel or checkout"
  FROM=$(cd "$(dirname "$FROM")" && pwd)/$(basename "$FROM")
  [[ -f $FROM && $FROM == *.whl || -f $FROM/pyproject.toml ]] || bad "--from $FROM: neither a wheel nor a checkout"
}

# ---------------------------------------------------------------- inspection

# device_tree NAME: a root property of the device tree, one string per line.
device_tree() { [[ ! -r $ROOT/proc/device-tree/$1 ]] || tr '\0' '\n' <"$ROOT/proc/device-tree/$1"; }

# machine: processor architecture; with --root, the content of the file `machine`.
machine() { if [[ -n $ROOT ]]; then cat "$ROOT/machine" 2>/dev/null || echo unknown; else uname -m; fi; }

need_machine() {
  [[ $(machine) == "$1" ]] || die "this script is for $1 ($2), not $(machine)"
  found "machine $1"
}

# find_python: set PYTHON to a supported Python.
find_python() {
  if [[ -n $ROOT ]]; then
    PYTHON=${PYTHON:-/usr/bin/python3}
    return
  fi
  PYTHON=$(command -v "${PYTHON:-python3}") || die "Python not found: apt-get install python3, or use --python"
  "$PYTHON" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 13))' ||
    die "$PYTHON is $("$PYTHON" --version); use --python with Python 3.10 to 3.12"
  found "$("$PYTHON" --version) ($PYTHON)"
}

# jobs_at_once: number of parallel compilers that cores and memory allow.
jobs_at_once() {
  local cores memory_mb
  cores=$(grep -c ^processor "$ROOT/proc/cpuinfo" 2>/dev/null) || cores=1
  memory_mb=$(awk '/^MemTotal:/ {print int($2 / 1024)}' "$ROOT/proc/meminfo" 2>/dev/null) || memory_mb=0
  local fit=$((${memory_mb:-0} / MB_PER_COMPILER))
  ((fit >= 1)) || fit=1
  echo $((fit < cores ? fit : cores))
}

# pinned NAME: version in constraints.txt.
pinned() {
  local version
  version=$(sed -n "s/^$1==\([^;[:space:]]*\)\$/\1/p" "$CONSTRAINTS")
  [[ -n $version ]] || die "constraints.txt pins no $1"
  echo "$version"
}

# source_digest: hash of all sources of an installation.
source_digest() {
  if [[ -f $FROM ]]; then
    sha256sum <"$FROM"
  else
    (cd "$FROM" && find testbed "${BUNDLED[@]}" pyproject.toml -type f -not -path '*/__pycache__/*' \
      -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum)
  fi | cut -c 1-64
}

need_systemd() {
  [[ -n $ROOT ]] || command -v systemctl >/dev/null || die "no systemd: --service and --tune are not available"
}

same_text() { [[ -f $1 && $(<"$1") == "$2" ]]; }

# ---------------------------------------------------------------- steps

# packages NAME...: install missing Debian packages.
packages() {
  local name missing=()
  for name in "$@"; do
    [[ $(dpkg-query --admindir="$ROOT/var/lib/dpkg" -W -f '${db:Status-Status}' "$name" 2>/dev/null) == installed ]] ||
      missing+=("$name")
  done
  if ((${#missing[@]} == 0)); then
    found "packages $*"
  elif [[ -z $PACKAGES ]]; then
    found "packages not installed (--no-packages): ${missing[*]}"
  else
    as_root "packages ${missing[*]}"
    plan apt-get update -q
    plan env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
  fi
}

# make_prefix: create the installation directory and the virtual environment in it.
make_prefix() {
  local there=$PREFIX
  while [[ ! -d $there ]]; do there=$(dirname "$there"); done
  [[ -n $ROOT || -w $there ]] || as_root "$PREFIX"
  if [[ -z $ROOT && -x $PREFIX/venv/bin/python ]] && "$PREFIX/venv/bin/python" -m pip --version >/dev/null 2>&1; then
    found "environment $PREFIX/venv"
  else
    [[ -e $PREFIX/venv/pyvenv.cfg || -z $(ls -A "$PREFIX/venv" 2>/dev/null) ]] ||
      die "$PREFIX/venv holds other files, and no virtual environment: name another --prefix"
    plan mkdir -p "$PREFIX"
    plan "$PYTHON" -m venv --clear "$PREFIX/venv"
    FRESH=yes
  fi
}

# testbed_for EXTRA CMAKE_ARG...: install the testbed with an extra, from files whose hashes are locked, and
# llama-cpp-python, which is published as source, built for this machine.
testbed_for() {
  local extra=$1 stamp=$PREFIX/installed.txt what built
  shift
  built="llama-cpp-python $(pinned llama-cpp-python) $*"
  what="$extra $(source_digest) packages $(sha256sum <"$HASHES" | cut -c 1-64) $built"
  if [[ -z $FRESH ]] && same_text "$stamp" "$what"; then
    found "testbed[$extra] in $PREFIX/venv, $built"
    return
  fi
  [[ -n $FRESH ]] || same_text "$PREFIX/built.txt" "$built" || plan rm -rf "$PREFIX/venv/wheels"
  plan env "CMAKE_ARGS=$*" "${CUDA_ENV[@]}" "CMAKE_BUILD_PARALLEL_LEVEL=$(jobs_at_once)" \
    "$PREFIX/venv/bin/python" "$CHECKOUT/scripts/environment.py" --venv "$PREFIX/venv" --extras "$extra" --from "$FROM"
  plan "$PREFIX/venv/bin/testbed" --version
  plan write_text "$PREFIX/built.txt" "$built"
  plan write_text "$stamp" "$what"
}
CUDA_ENV=()

# service NAME [DEVICES]: install unit, user and directory; DEVICES: allow access to GPU or firmware.
service() {
  [[ -n $SERVICE ]] || return 0
  local unit=testbed-$1.service units=/etc/systemd/system changed=''
  need_systemd
  as_root "service $unit"
  if grep -q '^testbed:' "$ROOT/etc/passwd" 2>/dev/null; then
    found "user testbed"
  else
    plan useradd --system --user-group --home-dir "$STATE" --shell /usr/sbin/nologin testbed
  fi
  if [[ -d $ROOT$STATE ]]; then
    found "$STATE"
  else
    plan install -d -m 700 -o testbed -g testbed "$STATE"
  fi
  if unit_file "$unit" "$units/$unit"; then changed=yes; fi
  if [[ -n ${2:-} ]] && unit_file devices.conf "$units/$unit.d/devices.conf"; then changed=yes; fi
  if [[ $1 == bs && ! -e $ROOT/etc/testbed/bs.env ]]; then
    plan install -D -m 644 "$HERE/systemd/bs.env" /etc/testbed/bs.env
  fi
  enable_unit "$unit" "$changed"
}

# unit_file NAME TARGET: install a unit file with this prefix; true if it has to be written.
unit_file() {
  if same_text "$ROOT$2" "$(with_prefix "$1" "$PREFIX")"; then
    found "$2"
    return 1
  fi
  plan write_unit "$1" "$PREFIX" "$2"
}

enable_unit() {
  local wants=/etc/systemd/system/multi-user.target.wants/$1
  [[ -z $2 || ! -d $ROOT/run/systemd/system ]] || plan systemctl daemon-reload
  if [[ -L $ROOT$wants ]]; then found "$1 is enabled"; else plan systemctl enable -q "$1"; fi
}

# tune: settings for repeatable timing.
tune() {
  [[ -n $TUNE ]] || return 0
  need_systemd
  as_root "--tune"
  local unit=testbed-tune.service changed='' conf=/etc/NetworkManager/conf.d/90-testbed.conf
  if unit_file "$unit" "/etc/systemd/system/$unit"; then changed=yes; fi
  enable_unit "$unit" "$changed"
  [[ -z $changed || ! -d $ROOT/run/systemd/system ]] || plan systemctl start "$unit"
  if [[ ! -d $ROOT/etc/NetworkManager ]]; then
    found "no NetworkManager; turn Wi-Fi power saving off with: iw dev wlan0 set power_save off"
  elif same_text "$ROOT$conf" "$(<"$HERE/systemd/networkmanager.conf")"; then
    found "$conf"
  else
    plan install -D -m 644 "$HERE/systemd/networkmanager.conf" "$conf"
  fi
}

# ---------------------------------------------------------------- functions used as steps

# write_text FILE TEXT: write one line.
write_text() { mkdir -p "$(dirname "$1")" && printf '%s\n' "$2" >"$1"; }

# with_prefix NAME PREFIX: unit file with the installation directory filled in.
with_prefix() { sed "s#/opt/testbed#$2#g" "$HERE/systemd/$1"; }

# write_unit NAME PREFIX TARGET
write_unit() { mkdir -p "$(dirname "$3")" && with_prefix "$1" "$2" >"$3"; }

# ---------------------------------------------------------------- execution

carry_out() {
  local step
  if ((${#PLAN[@]} == 0)); then
    echo "nothing to do: everything is in place"
    return
  fi
  if ((${#NEEDS_ROOT[@]})) && [[ -z $DRY && $(id -u) != 0 ]]; then
    die "run it as root (sudo $0 …) for: $(printf '%s; ' "${NEEDS_ROOT[@]}" | sed 's/; $//')"
  fi
  for step in "${PLAN[@]}"; do
    printf '+ %s\n' "$step"
    [[ -n $DRY ]] || eval "$step" </dev/null >&2 ||
      die "step failed; fix the cause and run this script again to continue"
  done
  if [[ -n $DRY ]]; then
    echo "dry run: ${#PLAN[@]} steps, nothing was changed"
  else
    echo "done: ${#PLAN[@]} steps"
  fi
}
