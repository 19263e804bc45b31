#!/bin/sh
# Gets the programs that `bench peers` compares with. As root, it installs them from apt (names of
# Debian 12). Otherwise it prints the command, and what is missing. A row whose program is not there
# is `unchecked`, and says so.
set -eu

# program              package of apt    from PyPI, without root
# ucx_perftest         ucx-utils         - (libucx-cu12 has the library alone)
# zmq.h, cc            libzmq3-dev, gcc  - (pyzmq has the library alone)
PACKAGES="ucx-utils libzmq3-dev gcc libc6-dev"

if [ "$(id -u)" = 0 ]; then
    apt-get update -q
    # shellcheck disable=SC2086 # one word for each package
    exec apt-get install -qy --no-install-recommends $PACKAGES
fi
echo "sudo apt-get install --no-install-recommends $PACKAGES"
for program in ucx_perftest cc; do
    command -v "$program" >/dev/null || echo "missing: $program"
done
[ -e /usr/include/zmq.h ] || echo "missing: zmq.h"
