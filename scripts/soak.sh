#!/bin/sh
# The long runs, not part of continuous integration: the native code under sanitizers with the tests that drive it
# hardest, then every test that carries the marker `soak`. CXX=... chooses the compiler, as for any build.
set -eu
python=.venv/bin/python
compiler=${CXX:-c++}

build() { # name, value of ULTRAFAST_SANITIZE
    echo "Building with -fsanitize=$2" >&2
    "$python" -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --upgrade \
        --target "build/soak-$1" -C build-dir="build/soak-$1-objects" -C cmake.build-type=RelWithDebInfo \
        -C cmake.define.ULTRAFAST_SANITIZE="$2" .
}

# The interpreter is not instrumented, so the sanitizer's runtime is loaded before it.
runtime() { # names of the library, GCC's and Clang's
    for name in "$@"; do
        path=$("$compiler" -print-file-name="$name")
        if [ -f "$path" ]; then
            printf '%s' "$path"
            return
        fi
    done
    echo "error: $compiler has no runtime library $1" >&2
    exit 1
}

build address address,undefined
preload=$(runtime libasan.so libclang_rt.asan-x86_64.so libclang_rt.asan-aarch64.so)
# So is the C++ library, which the interpreter does not bring: the sanitizer looks for what throws when it starts.
preload="$preload $(runtime libstdc++.so.6 libc++.so.1)"
echo "Tests under the address and undefined-behaviour sanitizers" >&2
# Leaks: CPython itself never frees everything. Threads' stacks: the team's are few.
env LD_PRELOAD="$preload" PYTHONPATH="$PWD/build/soak-address" PYTHONMALLOC=malloc \
    ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
    "$python" -m pytest --capture=sys -o timeout=7200 -m "soak or not soak" tests/native tests/models tests/weights

build thread thread
preload=$(runtime libtsan.so libclang_rt.tsan-x86_64.so libclang_rt.tsan-aarch64.so)
echo "Tests under the thread sanitizer" >&2
# With address space randomisation at full strength, the sanitizer's shadow memory finds no place on newer kernels.
# NumPy's BLAS is not instrumented either: on one thread it has no races to be suspected of.
env LD_PRELOAD="$preload" PYTHONPATH="$PWD/build/soak-thread" TSAN_OPTIONS=halt_on_error=1 \
    OPENBLAS_NUM_THREADS=1 setarch -R "$python" -m pytest --capture=sys -o timeout=7200 tests/native tests/models

echo "Long runs" >&2
# Those of tests/weights, a million damaged models, have just run under the sanitizer.
"$python" -m pytest -o timeout=7200 -m soak --ignore=tests/weights
