#!/bin/sh
# Make the virtual environment $1 with the first suitable Python: $PYTHON if set, else python3, else a versioned one.
# `make setup` calls this. One that is there and starts is kept.
venv=$1

suits() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null
}

if [ -x "$venv/bin/python" ] && suits "$venv/bin/python" && "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    exit 0
fi

for python in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14}; do
    if suits "$python"; then
        # Debian and Ubuntu ship venv and ensurepip apart from Python.
        if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
            echo "flashnorm_lab: $python has no venv module: install it (Debian, Ubuntu: apt install python3-venv), then run make again." >&2
            exit 1
        fi
        rm -rf "$venv"
        exec "$python" -m venv "$venv"
    fi
done

found=$("${PYTHON:-python3}" -c 'import platform; print("Python " + platform.python_version())' 2>/dev/null)
echo "flashnorm_lab: needs Python 3.11 to 3.14, but ${PYTHON:-python3} is ${found:-not there}: install one, or name it: make PYTHON=/path/to/python3" >&2
exit 1
