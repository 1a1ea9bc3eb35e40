"""Reads the file that `certificate_path` names: a start that cannot read it stops (H124)."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from swapd.certify.certificate import MAX_CERTIFICATE_BYTES, Certificate, parse
from swapd.errors import Code, SwapdError


def read_certificate(path: str | Path) -> Certificate:
    """Raises `certificate_unreadable`. Never waits: a pipe is no certificate."""
    path = Path(path)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "no path"
        raise SwapdError(Code.CERTIFICATE_UNREADABLE, f"cannot read {path}: {why}") from None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise SwapdError(Code.CERTIFICATE_UNREADABLE, f"{path} is no file")
        with open(fd, "rb", closefd=False) as file:
            raw = file.read(MAX_CERTIFICATE_BYTES + 1)
    except OSError as error:
        raise SwapdError(Code.CERTIFICATE_UNREADABLE, f"cannot read {path}: {error.strerror}") from None
    finally:
        os.close(fd)
    return parse(raw, path.name)


def read_configured(path: str | None) -> tuple[Certificate, ...]:
    """The certificates of a configuration: one, or none where it names none."""
    return () if path is None else (read_certificate(path),)
