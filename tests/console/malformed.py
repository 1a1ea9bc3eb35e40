"""What a client can send that it should not, as data: a name and the parts to send, in order.

`{token}` aside, these are bytes as they go on the wire. After each the server must still answer others.
The first 24 are those that were tried on the stock server, of which it survived 22.
"""

from __future__ import annotations

import struct
from typing import Final

from tests.console.service_double import TENANT

HEAD: Final = b"Host: 127.0.0.1\r\nAuthorization: Bearer " + TENANT.encode() + b"\r\n"
SOCKET: Final = b"/v1/sessions/live/stream"
UPGRADE: Final = (
    b"GET " + SOCKET + b" HTTP/1.1\r\n" + HEAD + b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: bKdPyn3u98cTfZJSh4TNeQ==\r\n\r\n"
)
POST: Final = b"POST /v1/sessions HTTP/1.1\r\n" + HEAD + b"Content-Type: application/json\r\n"
JUNK: Final = bytes(range(256)) * 8


def frame(opcode: int, data: bytes, *, masked: bool = True, final: int = 1, reserved: int = 0) -> bytes:
    head = bytes([(final << 7) | (reserved << 4) | opcode])
    flag = 0x80 if masked else 0
    size = len(data)
    head += bytes([flag | size]) if size < 126 else bytes([flag | 126]) + struct.pack("!H", size)
    return head + (b"\0\0\0\0" if masked else b"") + data


FRAGMENTS: Final = frame(0, b"a" * 30000, final=0) * 60

MALFORMED: Final[dict[str, tuple[bytes, ...]]] = {
    "garbage": (b"\x00\xff\x13garbage\r\n\r\n",),
    "no host": (b"GET / HTTP/1.1\r\n\r\n",),
    "negative content length": (POST + b"Content-Length: -5\r\n\r\n",),
    "chunk size that is not a number": (POST + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\nabc\r\n",),
    "body shorter than its length": (POST + b"Content-Length: 50\r\n\r\nabc",),
    "huge header": (b"GET / HTTP/1.1\r\n" + HEAD + b"X: " + b"a" * 40000 + b"\r\n\r\n",),
    "http/2 preface and junk": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + JUNK,),
    "http/2 upgrade with bad settings": (
        b"GET /healthz HTTP/1.1\r\n" + HEAD + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        b"HTTP2-Settings: !!!!\r\n\r\n",
    ),
    "websocket key that is no key": (UPGRADE.replace(b"bKdPyn3u98cTfZJSh4TNeQ==", b"x"),),
    "websocket without version": (UPGRADE.replace(b"Sec-WebSocket-Version: 13\r\n", b""),),
    "websocket with trailing bytes": (UPGRADE + b"x\r\n",),
    "websocket frame without mask": (UPGRADE, frame(1, b"hi", masked=False)),
    "websocket text that is not UTF-8": (UPGRADE, frame(1, b"\xff\xfe\xfd")),
    "websocket reserved opcode": (UPGRADE, frame(3, b"hi")),
    "websocket data after close": (UPGRADE, frame(8, b"\x03\xe8") + frame(1, b"late")),
    "websocket close code that is none": (UPGRADE, frame(8, b"\x00\x01")),
    "websocket to an HTTP route": (UPGRADE.replace(SOCKET, b"/healthz"),),
    "websocket to no route": (UPGRADE.replace(SOCKET, b"/nope"),),
    "HTTP to a websocket route": (b"GET " + SOCKET + b" HTTP/1.1\r\n" + HEAD + b"\r\n",),
    "pipelined": ((b"GET /healthz HTTP/1.1\r\n" + HEAD + b"\r\n") * 5,),
    "path that is not ASCII": (b"GET /\xff\xfe HTTP/1.1\r\n" + HEAD + b"\r\n",),
    "path with bad escapes": (b"GET /%ff%00 HTTP/1.1\r\n" + HEAD + b"\r\n",),
    # "reset while streaming" and "reset while a websocket streams" are tests of their own.
    "websocket fragment without a begin": (UPGRADE, frame(0, b"late")),
    "websocket oversized ping": (UPGRADE, frame(9, b"p" * 200)),
    "websocket reserved bits": (UPGRADE, frame(1, b"hi", reserved=7)),
    "websocket endless fragments": (UPGRADE, frame(1, b"a" * 30000, final=0), FRAGMENTS),
    "websocket flood of pings": (UPGRADE, *[frame(9, b"p" * 100) * 500] * 30),
    "websocket flood of frames": (UPGRADE, *[frame(2, b"") * 500] * 4),
    "websocket announcing 2**63 bytes": (UPGRADE, b"\x82\xff" + b"\x7f" + b"\xff" * 7 + b"\0\0\0\0"),
    "websocket with compression and a bomb": (
        UPGRADE.replace(b"\r\n\r\n", b"\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n"),
        frame(1, b"\xec\xc1" + b"\0" * 5000, reserved=4),
    ),
    "websocket with a body": (UPGRADE.replace(b"\r\n\r\n", b"\r\nContent-Length: 5\r\n\r\nhello"),),
    "websocket by POST": (UPGRADE.replace(b"GET ", b"POST "),),
    "two hosts": (b"GET / HTTP/1.1\r\n" + HEAD + HEAD + b"\r\n",),
    "two lengths": (POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",),
    "length and chunks": (POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",),
    "length beyond every number": (POST + b"Content-Length: " + b"9" * 60 + b"\r\n\r\n",),
    "chunk size beyond every number": (POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"F" * 40 + b"\r\n",),
    "another encoding": (POST + b"Transfer-Encoding: gzip\r\n\r\nxx",),
    "length that is not ASCII": (POST + b"Content-Length: \xb2\r\n\r\nxx",),
    "chunked in tiny pieces": (POST + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n" * 5000),
    "many headers": (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 3000 + b"\r\n",),
    "header name that is empty": (b"GET / HTTP/1.1\r\n" + HEAD + b": x\r\n\r\n",),
    "folded header": (b"GET / HTTP/1.1\r\n" + HEAD + b"A: b\r\n c\r\n\r\n",),
    "header with NUL": (b"GET / HTTP/1.1\r\n" + HEAD + b"A: b\x00c\r\n\r\n",),
    "line feeds only": (b"GET /healthz HTTP/1.1\n" + HEAD.replace(b"\r\n", b"\n") + b"\n",),
    "HTTP/0.9": (b"GET /\r\n",),
    "HTTP/1.0 without host": (b"GET / HTTP/1.0\r\n\r\n",),
    "HTTP/9.9": (b"GET / HTTP/9.9\r\n" + HEAD + b"\r\n",),
    "absolute address": (b"GET http://evil.example/healthz HTTP/1.1\r\n" + HEAD + b"\r\n",),
    "address that is a star": (b"OPTIONS * HTTP/1.1\r\n" + HEAD + b"\r\n",),
    "CONNECT": (b"CONNECT evil.example:443 HTTP/1.1\r\n" + HEAD + b"\r\n",),
    "TLS hello": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + JUNK,),
    "expect that nobody knows": (POST + b"Expect: 200-maybe\r\nContent-Length: 2\r\n\r\n{}",),
    "expect and too large": (POST + b"Expect: 100-continue\r\nContent-Length: 9999999\r\n\r\n",),
    "query of a megabyte": (b"GET /?" + b"a=b&" * 250_000 + b" HTTP/1.1\r\n" + HEAD + b"\r\n",),
    "method of a megabyte": (b"G" * 1_000_000,),
    "json of open brackets": (POST + b"Content-Length: 500000\r\n\r\n", b"[" * 500_000),
    "pipelined behind a stream": (
        b"GET /v1/sessions/live/events HTTP/1.1\r\n" + HEAD + b"\r\nGET / HTTP/1.1\r\n" + HEAD + b"\r\n",
    ),
    "bytes after connection close": (b"GET / HTTP/1.1\r\n" + HEAD + b"Connection: close\r\n\r\n" + JUNK,),
}  # fmt: skip
