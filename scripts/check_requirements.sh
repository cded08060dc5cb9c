#!/bin/sh
# Prints the Python interpreter to build with, or says in one line what this machine lacks and which one command
# installs it. PYTHON=... chooses the interpreter, CXX=... the compiler.
set -u

minimum='import sys; raise SystemExit(sys.version_info < (3, 11))'

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        # Asked for by name: that one or none.
        if "$PYTHON" -c "$minimum" >/dev/null 2>&1; then command -v "$PYTHON"; fi
        return
    fi
    for candidate in python3.14 python3.13 python3.12 python3.11 python3; do
        # Run, not only looked up: version managers leave names on the path that start nothing.
        if "$candidate" -c "$minimum" >/dev/null 2>&1; then
            command -v "$candidate"
            return
        fi
    done
}

has_compiler() {
    printf '%s\n' '#include <bit>' '#include <concepts>' '#include <span>' \
        'template <std::integral T> T same(T value) { return std::bit_cast<T>(value); }' \
        'int main() { return same(0); }' |
        ${CXX:-c++} -std=c++20 -x c++ -fsyntax-only - >/dev/null 2>&1
}

python=$(find_python)
missing=
packages_apt=
packages_dnf=
add() { # what, apt packages, dnf packages
    missing="${missing:+$missing, }$1"
    packages_apt="$packages_apt $2"
    packages_dnf="$packages_dnf $3"
}

if [ -z "$python" ]; then
    if [ -n "${PYTHON:-}" ]; then
        echo "error: PYTHON names no interpreter of version 3.11 or newer" >&2
        exit 1
    fi
    if command -v python3 >/dev/null 2>&1; then # the distribution's own is older
        add "Python 3.11 or newer with venv and headers" \
            "python3.11 python3.11-dev python3.11-venv" "python3.12 python3.12-devel"
    else
        add "Python 3.11 or newer with venv and headers" "python3 python3-dev python3-venv" "python3 python3-devel"
    fi
else
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
        add "the venv module of Python $version" "python$version-venv" "python$version"
    fi
    if ! "$python" -c 'import pathlib, sysconfig
raise SystemExit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").is_file())' >/dev/null 2>&1; then
        add "the headers of Python $version" "python$version-dev" "python3-devel"
    fi
fi
has_compiler || add "a C++20 compiler" "g++" "gcc-c++"

if [ -z "$missing" ]; then
    echo "$python"
    exit 0
fi

sudo=
[ "$(id -u)" -eq 0 ] || sudo="sudo "
if command -v apt-get >/dev/null 2>&1; then
    command="${sudo}apt-get install -y$packages_apt"
elif command -v dnf >/dev/null 2>&1; then
    command="${sudo}dnf install -y$packages_dnf"
elif command -v xcode-select >/dev/null 2>&1; then
    # The command-line tools bring the compiler; their Python is too old, so that one comes from elsewhere.
    case $missing in
        *Python*) command="brew install python (or the installer of python.org; xcode-select --install for a compiler)" ;;
        *) command="xcode-select --install" ;;
    esac
else
    command="your system's package manager"
fi
echo "error: missing: $missing; install with: $command" >&2
exit 1
