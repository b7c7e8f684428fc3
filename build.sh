#!/bin/sh
# ./build.sh                    build the five .pyz files into dist/
# ./build.sh demo [FLAGS]       build, then run a whole cluster on this machine (FLAGS: dist/llmgw-ctl.pyz demo --help)
# ./build.sh test [--all] [..]  build, then run the tests; --all adds the slow ones; the rest goes to pytest
# ./build.sh clean              remove everything this script made
set -eu
cd "$(dirname -- "$0")"

die() {
    echo "build.sh: $1" >&2
    echo "  hint: $2" >&2
    exit "${3:-78}"
}

# The first Python that is new enough; PYTHON names another.
find_python() {
    if [ -n "${PYTHON:-}" ]; then
        set -- "$PYTHON"
    else
        set -- python3 /usr/bin/python3 python3.14 python3.13 python3.12 python3.11
    fi
    for python in "$@"; do
        if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$python"
            return
        fi
    done
    die "no Python 3.11 or newer found" "apt-get install python3, or name one: PYTHON=/path/to/python3 ./build.sh"
}

# A virtual environment with what requirements.lock pins for the tests; made anew when the lock changes.
test_environment() {
    state=$(cksum <requirements.lock; "$python" --version)
    if [ "$(cat build/venv/made-from 2>/dev/null)" != "$state" ]; then
        rm -rf build/venv
        "$python" -m venv build/venv >/dev/null ||
            die "the tests run in a virtual environment, which this Python cannot make" "apt-get install python3-venv"
        sed -n '/^# \[test\]/,/^# \[engine\]/p' requirements.lock >build/test.txt
        build/venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary=:all: \
            --requirement build/test.txt
        echo "$state" >build/venv/made-from
    fi
}

command=${1:-build}
[ $# -eq 0 ] || shift
python=$(find_python)
case $command in
    build)
        [ $# -eq 0 ] || die "build takes no arguments, not '$1'" "./build.sh [build|demo|test|clean]" 2
        exec "$python" packaging/archive.py ;;
    demo)
        "$python" packaging/archive.py
        exec "$python" dist/llmgw-ctl.pyz demo "$@" ;;
    test)
        if [ "${1:-}" = --all ]; then
            shift
            set -- -m "" "$@"
        fi
        mkdir -p build
        "$python" packaging/archive.py
        test_environment
        exec build/venv/bin/python -m pytest "$@" ;;
    clean)
        rm -rf build dist .mypy_cache .ruff_cache .pytest_cache
        find . -name __pycache__ -type d -prune -exec rm -rf {} + ;;
    help | -h | --help)
        sed -n '2,5s/^# //p' "$0" ;;
    *)
        die "unknown command '$command'" "./build.sh [build|demo|test|clean]" 2 ;;
esac
