#!/bin/sh
# Makes .venv and installs the project into it, as a user would get it (not editable), with the extras named.
# Does nothing when the sources and the extras are those of the last time. PYTHON=... chooses the interpreter.
#
#     scripts/install.sh test lint
set -eu

python=$(sh scripts/check_requirements.sh)

say() { printf '%s\n' "$*" >&2; }

# pip is quiet when all is well; its whole output is shown when something is wrong.
pip_install() {
    log=.venv/pip.log
    if ! .venv/bin/python -m pip install --disable-pip-version-check "$@" >"$log" 2>&1; then
        cat "$log" >&2
        say "error: installation failed; the output of pip is above"
        exit 1
    fi
}

# The environment is made again when the interpreter is another one, or when a stopped run left half of it.
identity=$("$python" -c 'import sys; print(sys.version)')
if [ ! -x .venv/bin/python ] || ! .venv/bin/python -m pip --version >/dev/null 2>&1 ||
    [ "$(.venv/bin/python -c 'import sys; print(sys.version)')" != "$identity" ]; then
    say "Making .venv with $("$python" -V)"
    "$python" -m venv --clear .venv
fi

# One stamp a list of requirements, one for the project's own sources; cksum and POSIX tools only.
requirements_changed() { # stamp name, requirements on standard input
    cat >.venv/wanted
    ! cmp -s .venv/wanted ".venv/installed-$1"
}
for extra in build "$@"; do
    .venv/bin/python scripts/requirements.py "$extra" >".venv/requirements-$extra"
    if requirements_changed "$extra" <".venv/requirements-$extra"; then
        say "Installing the $extra requirements"
        pip_install -r ".venv/requirements-$extra"
        cp ".venv/requirements-$extra" ".venv/installed-$extra"
    fi
done

sources_key() {
    {
        echo "$identity"
        find pyproject.toml CMakeLists.txt README.md LICENSE native src -type f \
            ! -path '*/__pycache__/*' ! -name '*.so' | LC_ALL=C sort | while IFS= read -r file; do
            printf '%s ' "$file"
            cksum <"$file"
        done
    } | cksum
}
key=$(sources_key)
if [ "$(cat .venv/installed-project 2>/dev/null)" != "$key" ]; then
    say "Building ultrafast (the first build takes some minutes)"
    # Without isolation the build tools stay at one path, so that only what changed is compiled again.
    pip_install --no-build-isolation .
    printf '%s\n' "$key" >.venv/installed-project
fi
