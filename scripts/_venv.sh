# shellcheck shell=bash
# Sourced by the scripts: gives them a virtual environment of the project's own.
#
# ensure_venv EXTRAS   installs the project with those extras (comma-separated, or "") into .venv, unless
#                      that was done already for this pyproject.toml; sets VENV and PYTHON.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${RAFTLOG_VENV:-$ROOT/.venv}
PYTHON=$VENV/bin/python

_find_python() {
  local candidate
  for candidate in ${RAFTLOG_PYTHON:-} python3.11 python3.12 python3.13 python3; do
    if command -v "$candidate" >/dev/null 2>&1 &&
      "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return 0
    fi
  done
  echo "raftlog needs Python 3.11 or newer; on Debian: apt-get install python3 python3-venv" >&2
  return 1
}

_make_venv() {
  local python
  python=$(_find_python) || return 1
  "$python" -m venv "$VENV" >/dev/null 2>&1 && return 0
  # Debian ships Python without ensurepip; the venv module then needs one more package.
  rm -rf "$VENV"
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing python3-venv" >&2
    { apt-get -qq update && apt-get -qq install -y python3-venv; } >/dev/null
    "$python" -m venv "$VENV" && return 0
  fi
  if "$python" -m pip --version >/dev/null 2>&1; then
    "$python" -m venv --without-pip "$VENV" &&
      "$python" -m pip --python "$VENV/bin/python" install --quiet pip && return 0
    rm -rf "$VENV"
  fi
  echo "cannot make a virtual environment: install python3-venv (as root: apt-get install python3-venv)" >&2
  return 1
}

ensure_venv() {
  local extras=$1 stamp marker
  [ -x "$PYTHON" ] || _make_venv || return 1
  stamp=$(cat "$ROOT/pyproject.toml" - <<<"$ROOT $extras" | cksum)
  marker=$VENV/.installed-${extras//,/-}
  if [ "$(cat "$marker" 2>/dev/null)" != "$stamp" ]; then
    echo "installing raftlog${extras:+[$extras]} into ${VENV#"$ROOT"/}" >&2
    "$PYTHON" -m pip install --quiet --disable-pip-version-check --editable "$ROOT${extras:+[$extras]}" || {
      echo "installation failed: is a package index reachable from here?" >&2
      return 1
    }
    echo "$stamp" >"$marker"
  fi
}
