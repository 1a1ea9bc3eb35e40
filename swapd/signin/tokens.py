"""The owner's and the viewer's token: two private files beside the database.

`owner-token` may do everything in the console, `viewer-token` may look. A file that is not there is made.
Whoever removes or changes one has another token within seconds, and the sign-ins that hung on the old one
end.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from pathlib import Path
from typing import Final

from swapd.errors import Code, SwapdError
from swapd.views import Role

ROLES: Final[tuple[Role, ...]] = ("owner", "viewer")
MAX_FILE_BYTES: Final = 1024

_TOKEN: Final = re.compile(r"[A-Za-z0-9_.~+/=-]{32,256}")


class TokenFiles:
    """The two files in one folder. Its methods block: they read and write a disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, role: Role) -> Path:
        return self._folder / f"{role}-token"

    def load(self) -> dict[Role, str]:
        """Read both, making what is not there. Raises `config_invalid` for a file that others could read,
        or that holds no token."""
        return {role: self._load(role) for role in ROLES}

    def renew(self) -> dict[Role, str]:
        """Make two new tokens in place of the old ones."""
        return {role: self._make(role) for role in ROLES}

    def _load(self, role: Role) -> str:
        path = self.path(role)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return self._make(role)
        except OSError as error:
            raise SwapdError(Code.CONFIG_INVALID, f"{path}: {error.strerror}") from None
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                raise SwapdError(Code.CONFIG_INVALID, f"{path} must be a file of the service's own user")
            if stat.S_IMODE(found.st_mode) & 0o077:
                raise SwapdError(Code.CONFIG_INVALID, f"others can read {path}, run: chmod 0600 {path}")
            token = os.read(descriptor, MAX_FILE_BYTES).decode("ascii", "replace").strip()
        finally:
            os.close(descriptor)
        if _TOKEN.fullmatch(token) is None:
            detail = f"{path} holds no token of 32 to 256 letters and digits; remove it to get a new one"
            raise SwapdError(Code.CONFIG_INVALID, detail)
        return token

    def _make(self, role: Role) -> str:
        token = secrets.token_urlsafe(32)
        path = self.path(role)
        draft = path.with_name(path.name + ".new")
        try:
            draft.unlink(missing_ok=True)
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                os.fchmod(descriptor, 0o600)
                file.write(token + "\n")
            draft.replace(path)
        except OSError as error:
            raise SwapdError(Code.CONFIG_INVALID, f"{path}: {error.strerror}") from None
        return token
