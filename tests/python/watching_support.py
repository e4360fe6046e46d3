# SPDX-License-Identifier: Apache-2.0
"""Documents as processes publish them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from gpufs import publish

ROW_NBYTES = 512


def document(pid: int, **other: Any) -> dict[str, Any]:
    mount = {
        "number": 1, "root": "/data", "engine": "gpu", "device": 1, "writable": True, "page_nbytes": 4096,
        "cache_nbytes": 1 << 30, "nfiles": 2, "counters": dict.fromkeys(publish.COUNTERS, 5),
        "files": [{"path": "a", "way": "pull: registered", "bytes_read": 5, "hits": 3},
                  {"path": "b", "way": "staged: small"}],
    }  # fmt: skip
    whole = {"version": 1, "pid": pid, "pid_namespace": publish.pid_namespace(), "start": publish.start_of(pid)}
    return whole | {"command": "prog", "time_s": 10.0, "mounts": [mount]} | other


def put(of: dict[str, Any] | bytes, pid: int, namespace: int = 0, name: str = "") -> Path:
    text = of if isinstance(of, bytes) else json.dumps(of).encode()
    descriptor = publish.open_folder(make=True)
    publish.put(descriptor, name or publish.file_name(namespace or publish.pid_namespace(), pid), text)
    os.close(descriptor)
    return publish.folder_path() / (name or publish.file_name(namespace or publish.pid_namespace(), pid))
