"""A `/proc` made of files, to look into and to change between two looks."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

ZEROS = " ".join(["0"] * 30)


def stat_line(
    pid: int,
    parent: int = 1,
    name: str = "thing",
    *,
    start: int = 100,
    own: int = 0,
    children: int = 0,
    threads: int = 1,
    core: int = 0,
) -> str:
    """One `stat` file (proc(5)); user time is all of `own`."""
    fields = ["S", str(parent), *["0"] * 9, str(own), "0", str(children), "0", "20", "0", str(threads), "0"]
    fields += [str(start), *["0"] * 16, str(core), *["0"] * 13]
    return f"{pid} ({name}) {' '.join(fields)}\n"


class ProcTree:
    """Builds the files that are read; `path` is the root."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        (path / "net").mkdir()
        (path / "meminfo").write_text("not a process\n")
        self.listen()

    def process(
        self, pid: int, parent: int = 1, name: str = "thing", exe: str | None = None, **more: int
    ) -> None:
        folder = self.path / str(pid)
        folder.mkdir(exist_ok=True)
        (folder / "fd").mkdir(exist_ok=True)
        (folder / "stat").write_text(stat_line(pid, parent, name, **more))
        if exe is not None:
            (folder / "exe").unlink(missing_ok=True)
            os.symlink(exe, folder / "exe")

    def thread(self, pid: int, tid: int, own: int, core: int) -> None:
        folder = self.path / str(pid) / "task" / str(tid)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "stat").write_text(stat_line(tid, own=own, core=core))

    def end_thread(self, pid: int, tid: int) -> None:
        shutil.rmtree(self.path / str(pid) / "task" / str(tid))

    def end(self, *pids: int) -> None:
        for pid in pids:
            shutil.rmtree(self.path / str(pid))

    def socket(self, pid: int, fd: int, inode: int) -> None:
        os.symlink(f"socket:[{inode}]", self.path / str(pid) / "fd" / str(fd))

    def listen(self, *sockets: tuple[int, int], state: str = "0A", table: str = "tcp") -> None:
        """(port, inode) of each socket."""
        lines = [
            "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"
        ]
        for number, (port, inode) in enumerate(sockets):
            lines.append(
                f"   {number}: 0100007F:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000"
                f" 00000000  1000        0 {inode} 1 0000000000000000 100 0 0 10 0"
            )
        (self.path / "net" / table).write_text("\n".join(lines) + "\n")

    def cores(self, *cores: tuple[int, ...], first: int = 0) -> None:
        """Each core's user, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice."""
        lines = ["cpu  " + " ".join("1" for _ in range(10))]
        for number, core in enumerate(cores, first):
            lines.append(f"cpu{number} " + " ".join(map(str, (*core, *(0,) * (10 - len(core))))))
        (self.path / "stat").write_text("\n".join([*lines, "intr 5 0 0", "ctxt 1", ""]))
