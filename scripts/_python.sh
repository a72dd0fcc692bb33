# Find a Python that can run the scripts and run one with it: run SCRIPT [argument ...]
# Plain sh, so that a machine with only an unsuitable Python gets a sentence, not a SyntaxError.

usable='import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] <= (3, 13) else 1)'

run() {
    without_venv=
    for python in ${PYTHON:-python3.12 python3.11 python3.13 python3}; do
        "$python" -c "$usable" >/dev/null 2>&1 || continue
        if "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
            exec "$python" -B "$@"
        fi
        without_venv=${without_venv:-$python}
    done
    if [ -n "$without_venv" ]; then
        version=$("$without_venv" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        echo "sglang-lz: $without_venv cannot make virtual environments; install its venv module (on Debian and Ubuntu: apt-get install python$version-venv)." >&2
    elif [ -n "${PYTHON:-}" ]; then
        echo "sglang-lz: PYTHON=$PYTHON is not a Python 3.11, 3.12 or 3.13; name one or unset PYTHON." >&2
    else
        echo "sglang-lz: no Python 3.11, 3.12 or 3.13 found; install one or name it with PYTHON=/path/to/python." >&2
    fi
    exit 1
}
