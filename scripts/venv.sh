# Sourced by the other scripts: `make_venv EXTRAS` makes or reuses .venv and installs the project with these extras.
#
# Needs bash and any Python 3.11 to 3.13 with `venv`; the caller has changed to the project's folder. The project is
# installed editable, so that a .venv made earlier runs the code of now; it is installed anew only when setup.cfg or
# the extras change.

fail() {
  echo "error: $*" >&2
  exit 2
}

supported() {
  "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1
}

make_venv() {
  local extras=$1 candidate stamp
  if ! .venv/bin/python -c '' >/dev/null 2>&1 || ! supported .venv/bin/python; then
    for candidate in python3 python3.13 python3.12 python3.11 ""; do
      supported "$candidate" && break
    done
    [ -n "$candidate" ] || fail "no Python 3.11, 3.12 or 3.13 with the module venv is installed"
    echo "making .venv with $("$candidate" --version)" >&2
    "$candidate" -m venv --clear .venv
  fi
  stamp=$(.venv/bin/python -c 'import hashlib; print(hashlib.sha256(open("setup.cfg", "rb").read()).hexdigest())')
  if [ "$(cat ".venv/installed-$extras" 2>/dev/null)" != "$stamp" ]; then
    echo "installing bert_tf[$extras] into .venv; the first time this takes some minutes" >&2
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[$extras]" ||
      fail "pip could not install bert_tf[$extras]; its message stands above"
    echo "$stamp" >".venv/installed-$extras"
  fi
}
