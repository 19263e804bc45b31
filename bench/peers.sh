#!/bin/sh
# Gets the programs that `bench peers`, `bench python` and `bench truth` compare with. As root, it
# installs them: from apt (names of Debian 12), and UCX from PyPI, because the one of Debian 12 takes
# loopback for a link of 12 MB/s. Otherwise it prints the commands, and what is missing. A row whose
# program is not there is `unchecked`, and says so.
set -eu

# program              rows                     apt                from PyPI, without root
# ucx_perftest         ucx-*                    ucx-utils          libucx-cu12
# zmq.h, cc            zeromq-*                 libzmq3-dev, gcc   - (pyzmq has no headers)
# nbdkit               file-*                   nbdkit             -
# nbdcopy              truth, weights-2g        libnbd-bin         -
# rsync                weights-2g               rsync              -
# nginx                weights-link-http        nginx-light        -
# sshd, ssh-keygen     weights-link-sftp        openssh-server     -
# python3              bench python             python3-venv       -
# qemu-storage-daemon  file-*                   qemu-utils         -
# fio                  fio-*, bench floors      fio                -
PACKAGES="ucx-utils libzmq3-dev gcc libc6-dev nbdkit libnbd-bin qemu-utils fio python3-pip \
    python3-venv rsync nginx-light openssh-server"

# Where `bench` looks for UCX before it looks at PATH.
UCX="$HOME/.local/share/piped-peers"
FROM_PYPI="python3 -m pip install --quiet --no-deps --upgrade --target $UCX libucx-cu12"

if [ "$(id -u)" = 0 ]; then
    apt-get update -q
    # shellcheck disable=SC2086 # one word for each package
    apt-get install -qy --no-install-recommends $PACKAGES
    $FROM_PYPI
    exit
fi
echo "sudo apt-get install --no-install-recommends $PACKAGES"
echo "$FROM_PYPI"
for program in ucx_perftest cc nbdkit nbdcopy qemu-storage-daemon fio rsync nginx sshd; do
    command -v "$program" >/dev/null || echo "missing: $program"
done
[ -e /usr/include/zmq.h ] || echo "missing: zmq.h"
[ -e "$UCX/libucx/bin/ucx_perftest" ] || echo "missing: UCX of PyPI"
