"""A cloud image that boots under QEMU, made once from Debian's own packages and kept in build/lab."""

import hashlib
import shutil
import subprocess
from pathlib import Path

from tests.programs import ROOT

PACKAGES = ("linux-image-cloud-amd64", "initramfs-tools", "zstd", "systemd-sysv", "udev", "dbus", "cloud-init", "openssh-server",
            "python3", "ca-certificates", "netplan.io", "systemd-resolved", "iproute2", "sudo", "openssl", "curl", "e2fsprogs",
            "cloud-guest-utils")
PROGRAMS = ("mmdebstrap", "qemu-system-x86_64", "qemu-img", "genisoimage", "mke2fs", "ip", "ssh", "ssh-keygen", "ping")
# Kernel and initrd lie beside the image: booting them directly spares it a boot loader.
RECIPE = r"""
set -e
mmdebstrap --quiet --variant=minbase --mode=root --include="$PACKAGES" --dpkgopt='path-exclude=/usr/share/man/*' \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
  --customize-hook='echo "LABEL=root / ext4 errors=remount-ro 0 1" > $1/etc/fstab' \
  --customize-hook='rm -f $1/etc/ssh/ssh_host_* $1/etc/hostname; : > $1/etc/machine-id' \
  bookworm vm.tar "$(ls /etc/apt/sources.list.d/*.sources /etc/apt/sources.list 2>/dev/null | head -1)"
mkdir root
tar -C root -xf vm.tar
cp root/boot/vmlinuz-* vmlinuz
cp root/boot/initrd* initrd
printf 'datasource_list: [NoCloud, None]\nlocale: false\napt_preserve_sources_list: true\n' > lab.cfg
mv lab.cfg root/etc/cloud/cloud.cfg.d/90-lab.cfg
for unit in systemd-networkd-wait-online e2scrub_reap; do ln -sf /dev/null root/etc/systemd/system/$unit.service; done
truncate -s 2G vm.raw
mke2fs -q -t ext4 -L root -d root vm.raw
qemu-img convert -O qcow2 vm.raw vm.qcow2
rm -rf root vm.tar vm.raw
"""


def cloud_image() -> Path:
    """The directory with vm.qcow2, vmlinuz and initrd; takes a minute the first time."""
    digest = hashlib.sha256((RECIPE + ",".join(PACKAGES)).encode()).hexdigest()[:12]
    place = ROOT / "build" / "lab" / f"vm-{digest}"
    if not place.is_dir():
        making = place.with_name(f"{place.name}.making")
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        done = subprocess.run(["sh", "-c", RECIPE], cwd=making, capture_output=True, text=True, check=False, timeout=900,
                              env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PACKAGES": ",".join(PACKAGES)})
        assert done.returncode == 0, done.stderr[-2000:]
        making.rename(place)
    return place


def lacking() -> list[str]:
    """The programs that booting a VM needs and that are not here."""
    return [program for program in PROGRAMS if shutil.which(program, path="/usr/sbin:/usr/bin:/sbin:/bin") is None]
