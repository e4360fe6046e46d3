#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Boots a Linux in QEMU, in which nvme_in_guest_cpu takes QEMU's NVMe controllers over.

    guest.py BUILD

BUILD is a build tree that has the program. There are two guests, one with an IOMMU and one without, and a file of steps
for each. The kernel and busybox are Debian's packages, unpacked in build/guest and not installed. By KVM where that
boots in time, else emulated. Exit status: 0, all steps passed; 1, one failed or did not run; 77, something is missing.
"""

from __future__ import annotations

import lzma
import os
import random
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NoReturn

HERE = Path(__file__).parent
CACHE = HERE.parents[2] / "build" / "guest"
MODULES = ("nvme", "vfio_iommu_type1", "vfio-pci", "ext4", "crc32c_generic", "crc32c_intel")
NCPUS = 2  # so the kernel's driver has as many pairs of queues for blocks
KVM_BOOTS_IN_S, BOOTS_IN_S, ENDS_IN_S = 20, 120, 420
UP, UNPLUG = "GUEST: is up", "GUEST: unplug"
SECTOR, FIRST = 512, 2048  # where the partition begins
DISK_NBYTES = 4 << 20  # as in_guest.cpp has it


def skip(why: str) -> NoReturn:
    print(f"skipped: {why}")
    sys.exit(77)


def output_of(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def unpacked() -> Path:
    """Where the kernel, its modules and busybox lie."""
    root = CACHE / "root"
    if root.exists():
        return root
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        skip("apt-get and dpkg-deb, which unpack a kernel, are missing")
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        try:
            depends = output_of("apt-cache", "depends", "linux-image-amd64")
            kernel = re.search(r"Depends: (linux-image-\S+)", depends)
            if kernel is None:
                skip("apt knows no package linux-image-amd64: apt-get update")
            subprocess.run(
                ["apt-get", "download", "-q", kernel[1], "busybox-static"], cwd=folder, check=True, capture_output=True
            )
        except subprocess.CalledProcessError as error:
            skip(f"apt cannot give a kernel: {error.stderr.strip() or error}")
        into = Path(folder, "root")
        for package in Path(folder).glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", str(package), str(into)], check=True)
        into.rename(root)
    return root


def kernel_of(root: Path, into: Path) -> list[str]:
    """QEMU's arguments for the kernel, without its own decompressor, which takes an emulator long."""
    packed = next((root / "boot").glob("vmlinuz-*"))
    data = packed.read_bytes()
    start = data.find(b"\xfd7zXZ\0")
    if start < 0:
        return ["-kernel", str(packed)]
    plain = into / "vmlinux"
    plain.write_bytes(lzma.LZMADecompressor().decompress(data[start:]))
    return ["-kernel", str(plain), "-bios", "qboot.rom"]


def modules_of(root: Path) -> dict[str, bytes]:
    """MODULES and what they depend on, by their paths."""
    found = {file.name.removesuffix(".ko").replace("-", "_"): file for file in (root / "lib/modules").rglob("*.ko")}
    taken: dict[str, bytes] = {}
    left = [name.replace("-", "_") for name in MODULES]
    while left:
        file = found.get(left.pop())
        if file is None or (name := str(file.relative_to(root))) in taken:
            continue  # built into the kernel
        taken[name] = file.read_bytes()
        depends = re.search(rb"\0depends=([^\0]*)\0", taken[name])
        left += [each.replace("-", "_") for each in depends[1].decode().split(",")] if depends else []
    for file in (root / "lib/modules").glob("*/modules.*"):
        taken[str(file.relative_to(root))] = file.read_bytes()
    return taken


def program_of(build: Path, into: Path) -> dict[str, bytes]:
    """The program without its symbols, and its libraries."""
    program = build / "tests/nvme/nvme_in_guest_cpu"
    if not program.exists():
        sys.exit(f"{program} is missing: build the target nvme_in_guest_cpu")
    subprocess.run(["strip", "-o", str(into / "in_guest"), str(program)], check=True)
    taken = {"in_guest": (into / "in_guest").read_bytes()}
    for library in re.findall(r"(/\S+) \(0x", output_of("ldd", str(program))):
        taken[library.lstrip("/")] = Path(library).read_bytes()
    return taken


def write_initrd(path: Path, files: dict[str, bytes]) -> None:
    """As cpio's format newc."""
    folders = {str(parent) for name in files for parent in Path(name).parents} - {"."}
    folders |= {"dev", "proc", "sys", "mnt", "tmp"}
    with path.open("wb") as out:
        entries = [(name, 0o040755, b"") for name in sorted(folders)]
        entries += [(name, 0o100755, data) for name, data in files.items()] + [("TRAILER!!!", 0, b"")]
        for number, (name, mode, data) in enumerate(entries, 1):
            fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
            head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
            out.write(head + b"\0" * (-len(head) % 4) + data + b"\0" * (-len(data) % 4))


def write_partitioned(path: Path, tree: Path) -> None:
    """A disk with a partition, which has an ext4 file system of the files in a folder."""
    system = path.with_suffix(".ext4")
    mke2fs = shutil.which("mke2fs", path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    if mke2fs is None:
        skip("mke2fs is missing (Debian: e2fsprogs)")
    subprocess.run([mke2fs, "-q", "-t", "ext4", "-d", str(tree), str(system), "12M"], check=True, capture_output=True)
    data = system.read_bytes()
    entry = struct.pack("<B3sB3sII", 0, b"\0\0\0", 0x83, b"\0\0\0", FIRST, len(data) // SECTOR)
    path.write_bytes((b"\0" * 446 + entry).ljust(510, b"\0") + b"\x55\xaa" + b"\0" * (FIRST - 1) * SECTOR + data)


def arguments_of(work: Path, disks: list[Path], kernel: list[str], steps: str) -> list[str]:
    """QEMU's, without what executes the guest. One controller has two namespaces, two share an IOMMU group."""
    has_iommu = steps == "with_iommu"
    words = "console=ttyS0 quiet panic=-1 mitigations=off nokaslr no_timer_check"
    arguments = ["qemu-system-x86_64", "-M", "q35,kernel-irqchip=split", "-m", "1024", "-smp", str(NCPUS)]
    arguments += ["-nodefaults", "-vga", "none", "-display", "none", "-no-reboot", "-serial", "stdio", *kernel]
    arguments += ["-initrd", str(work / "initrd")]
    arguments += ["-append", f"{words} steps={steps} intel_iommu={'on' if has_iommu else 'off'}"]
    arguments += ["-D", str(work / "trace"), "-trace", "pci_nvme_io_cmd"]
    if has_iommu:
        arguments += ["-device", "intel-iommu,intremap=on"]
    for disk in disks:
        arguments += ["-drive", f"file={disk},format=raw,if=none,id={disk.name}"]
    arguments += ["-device", "nvme,id=main,serial=main,addr=4,max_ioqpairs=8"]
    for nsid, block in ((1, 512), (2, 4096)):
        sizes = f"logical_block_size={block},physical_block_size={block}"
        arguments += ["-device", f"nvme-ns,bus=main,drive=n{nsid},nsid={nsid},{sizes}"]
    arguments += ["-device", "nvme,serial=system,addr=5.0,multifunction=on,drive=system"]
    arguments += ["-device", "nvme,serial=other,addr=5.1,drive=other"]
    arguments += ["-device", "pcie-root-port,id=below,addr=6,chassis=1"]
    arguments += ["-device", "nvme,id=plugged,serial=plugged,bus=below,drive=plugged"]
    return [*arguments, "-qmp", f"unix:{work}/qmp,server=on,wait=off"]


def unplug(qmp: Path) -> None:
    """By QEMU's monitor."""
    with socket.socket(socket.AF_UNIX) as monitor:
        monitor.connect(str(qmp))
        words = monitor.makefile("rw")
        words.write('{"execute": "qmp_capabilities"}{"execute": "device_del", "arguments": {"id": "plugged"}}')
        words.flush()
        answers = [words.readline() for _ in range(3)]  # it greets first
    if any('"error"' in answer for answer in answers):
        print(f"QEMU does not unplug: {answers}")


def run(arguments: list[str], by_kvm: bool, work: Path) -> str | None:
    """Boots, and waits for the end. What the guest said; None where it did not come up by KVM in time."""
    accelerator = ["kvm", "-cpu", "host,-arch-capabilities"] if by_kvm else ["tcg,thread=multi", "-cpu", "max,la57=off"]
    command = [*arguments, "-accel", *accelerator]
    console = work / "console"
    begin, why, is_up, is_unplugged = time.monotonic(), "", False, False
    with (
        console.open("wb") as out,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out) as guest,
    ):
        try:
            while guest.poll() is None and not why:
                time.sleep(0.1)
                took = time.monotonic() - begin
                said = console.read_text(errors="replace")
                is_up = UP in said
                if UNPLUG in said and not is_unplugged:
                    is_unplugged = True
                    unplug(work / "qmp")
                if not is_up and took > (KVM_BOOTS_IN_S if by_kvm else BOOTS_IN_S):
                    why = f"the guest is not up after {took:.0f} s, and is ended"
                elif took > ENDS_IN_S:
                    why = f"the guest has not ended after {took:.0f} s, and is ended"
        finally:
            guest.kill()
    said = console.read_text(errors="replace")
    return None if by_kvm and UP not in said else f"{said}\n{why}"


def judge(steps: Path, said: str) -> bool:
    """Whether all steps of the file passed; prints what the guest said of them."""
    wanted = len(re.findall(r"^step ", steps.read_text(), re.MULTILINE))
    passed = re.findall(r"^GUEST: passed: ", said, re.MULTILINE)
    last = re.search(r"^GUEST: (\d+) steps passed", said, re.MULTILINE)
    if wanted != 0 and last is not None and int(last[1]) == len(passed) == wanted:
        print("\n".join("   " + line.strip() for line in said.splitlines() if line.startswith("GUEST: ")))
        return True
    print(said)
    print(f"FAILED: {steps.stem}: {len(passed)} of {wanted} steps passed")
    return False


def commands_came(trace: Path) -> bool:
    """Whether QEMU saw commands in queues that the kernel's driver does not have: that has a pair for each CPU."""
    queues: dict[str, set[int]] = {"READ": set(), "WRITE": set(), "FLUSH": set()}
    for line in trace.read_text(errors="replace").splitlines():
        command = re.search(r"pci_nvme_io_cmd .*sqid (\d+) .*'NVME_NVM_CMD_(READ|WRITE|FLUSH)'", line)
        if command and int(command[1]) > NCPUS:
            queues[command[2]].add(int(command[1]))
    if len(queues["READ"]) >= 2 and queues["WRITE"] and queues["FLUSH"]:
        return True
    print(f"FAILED: QEMU saw reads, writes or flushes of too few queues: {queues}")
    return False


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        sys.exit("guest.py BUILD")
    if os.uname().machine != "x86_64":
        skip("the guest is an x86_64 machine, and this is none")
    if shutil.which("qemu-system-x86_64") is None:
        skip("QEMU is missing (Debian: qemu-system-x86)")
    root = unpacked()
    by_kvm = os.access("/dev/kvm", os.R_OK | os.W_OK)
    status = 0
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        big = random.Random(1).randbytes(3_000_001)
        (work / "tree/folder").mkdir(parents=True)
        (work / "tree/folder/big").write_bytes(big)
        files = {name: (HERE / name).read_bytes() for name in ("with_iommu.sh", "without_iommu.sh")}
        files |= {
            "init": (HERE / "init.sh").read_bytes(),
            "bin/busybox": (root / "bin/busybox").read_bytes(),
            "wanted/big": big,
        }
        write_initrd(work / "initrd", files | modules_of(root) | program_of(Path(arguments[0]).resolve(), work))
        kernel = kernel_of(root, work)
        disks = [work / name for name in ("n1", "n2", "system", "other", "plugged")]
        for steps in ("with_iommu", "without_iommu"):
            for disk in disks:
                disk.write_bytes(b"\0" * DISK_NBYTES)
            write_partitioned(work / "system", work / "tree")
            (work / "trace").unlink(missing_ok=True)
            command = arguments_of(work, disks, kernel, steps)
            begin = time.monotonic()
            said = run(command, by_kvm, work)
            if said is None:
                print(f"   KVM is here, and does not boot a guest in {KVM_BOOTS_IN_S} s: it is emulated", flush=True)
                by_kvm, begin = False, time.monotonic()
                said = run(command, by_kvm, work)
            passed = judge(HERE / f"{steps}.sh", said or "") and commands_came(work / "trace")
            status = status if passed else 1
            how, took = "by KVM" if by_kvm else "emulated", time.monotonic() - begin
            print(f"   {steps}: {'passed' if passed else 'FAILED'}, {how}, in {took:.0f} s", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
