# SPDX-License-Identifier: Apache-2.0
"""What `gpufs doctor` says, and its exit status."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from gpufs import doctor


def test_without_paths_it_tries_a_file_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main() == 0
    said = capsys.readouterr().out
    for word in (
        "native module",
        "engine gpu",
        "engine simt",
        "driver",
        "open files",
        "locked memory",
        "huge pages",
        "io_uring",
        "openat2",
        "on cpu",
    ):
        assert word in said


def test_a_program_reads_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "small").write_bytes(b"few")
    for path, code in (tmp_path / "small", 0), (tmp_path / "missing", 1):
        assert doctor.main([path], as_json=True) == code
        sections = json.loads(capsys.readouterr().out)
        assert "driver" in sections[1]["lines"]
        assert str(path) in sections[-1]["title"]
        assert [section["failed"] for section in sections] == [False, False, False, False, code == 1]


def test_each_nvme_controller_is_named_with_what_it_takes_or_what_is_in_the_way(tmp_path: Path) -> None:
    native = doctor.native_module()
    tree = tuple(str(tmp_path / name) for name in ("sys", "proc", "dev"))
    assert doctor.nvme_section(native, tree).lines == [("controllers", "none on the PCI bus")]
    device = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    (device / "nvme/nvme0/nvme0n1").mkdir(parents=True)
    for name, words in ("class", "0x010802"), ("vendor", "0x144d"), ("device", "0xa80a"):
        (device / name).write_text(words + "\n")
    (device / "driver").symlink_to("../../drivers/nvme")
    (device / "iommu_group").symlink_to("../../../../kernel/iommu_groups/7")
    ((address, said),) = doctor.nvme_section(native, tree).lines
    assert address == "0000:01:00.0"
    assert said.startswith("144d:a80a, nvme0n1, driver nvme, IOMMU group 7: can be taken over, through vfio-pci; ")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/swaps").write_text("Filename\n/dev/nvme0n1 partition 8 0 -2\n")
    ((_, said),) = doctor.nvme_section(native, tree).lines
    assert "cannot be taken over: it is in use: nvme0n1 is swap space" in said


def test_each_path_says_which_way_and_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "large").write_bytes(bytes(1 << 20))
    (tmp_path / "small").write_bytes(b"few")
    assert doctor.main([tmp_path / "large", tmp_path / "small", tmp_path]) == 0
    said = capsys.readouterr().out
    assert "pull: " in said
    assert "staged: " in said
    assert "largest found" in said


@pytest.mark.parametrize("kind", ["missing", "fifo", "device", "unreadable"])
def test_what_gpufs_cannot_open_is_named_and_fails(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, words = tmp_path / kind, "No such file"
    if kind == "fifo":
        os.mkfifo(path)
        words = "a FIFO"
    elif kind == "device":
        path, words = Path("/dev/null"), "a character device"
    elif kind == "unreadable":
        path.write_bytes(b"x")
        path.chmod(0)
        words = "no permission"
        if os.access(path, os.R_OK):
            pytest.skip("root may read everything")
    assert doctor.main([path]) == 1
    assert words in capsys.readouterr().out


def test_an_empty_folder_is_no_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main([tmp_path]) == 0
    assert "no regular file" in capsys.readouterr().out


def test_without_the_native_module_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "native_module", lambda: None)
    assert doctor.main(["/etc/hostname"]) == 1
    said = capsys.readouterr().out
    assert "missing" in said
    assert "not known without" in said


def test_the_module_agrees_with_the_package(tmp_path: Path) -> None:
    native = doctor.native_module()
    assert native is not None
    (tmp_path / "file").write_bytes(bytes(4096))
    ((machine, way, why), *_) = [
        answer for answer in native.probe_path(os.fsencode(tmp_path / "file")) if answer[0] == "cpu"
    ]
    assert (machine, way) == ("cpu", "staged")
    assert why
    ((_, way, _), *_) = native.probe_path(os.fsencode(tmp_path))
    assert way == "error"
