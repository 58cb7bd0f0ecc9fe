"""A Hugging Face hub of a few lines: what the real client asks of one for push and pull, on this machine."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """Repositories as dictionaries of files; `asked` is every file that was downloaded."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.asked: list[str] = []
        self.refuses = 0
        """A status to answer everything with, if it is not 0."""
        self.address = ""


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    hub = FakeHub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            pass

        def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def json(self, values: object, status: int = 200) -> None:
            self.answer(status, json.dumps(values).encode(), Content_Type="application/json")

        def body(self) -> bytes:
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            if hub.refuses:
                return self.answer(hub.refuses)
            if found := re.fullmatch(r"/api/(models|datasets)/([^/]+/[^/]+)(/.*)?", path):
                kind, name, rest = found.groups()
                files = hub.repositories.get(f"{kind}/{name}")
                if files is None:
                    return self.answer(404, X_Error_Code="RepoNotFound")
                if (rest or "").startswith("/tree/"):
                    tree = [{"type": "file", "path": f, "size": len(c), "oid": "0"} for f, c in files.items()]
                    return self.json(tree)
                if (rest or "").endswith("/nothing"):
                    return self.answer(404, X_Error_Code="RevisionNotFound")
                siblings = [{"rfilename": file} for file in files]
                return self.json(
                    {"id": name, "sha": COMMIT, "siblings": siblings, "private": True, "tags": []}
                )
            if found := re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
                kind, name, commit, file = found.groups()
                content = hub.repositories[f"{(kind or 'models/')}{name}"].get(file)
                if content is None or commit != COMMIT:
                    return self.answer(404, X_Error_Code="EntryNotFound")
                if self.command == "GET":
                    hub.asked.append(file)
                etag = f'"{hashlib.sha256(content).hexdigest()}"'
                return self.answer(200, content, ETag=etag, X_Repo_Commit=COMMIT)
            return self.answer(404)

        do_HEAD = do_GET

        def do_POST(self) -> None:
            path, body = unquote(urlsplit(self.path).path), self.body()
            if hub.refuses:
                return self.answer(hub.refuses)
            if path == "/api/repos/create":
                asked = json.loads(body)
                key = f"{asked.get('type', 'model')}s/{asked.get('organization', 'me')}/{asked['name']}"
                hub.private.setdefault(key, asked.get("private", asked.get("visibility") == "private"))
                hub.repositories.setdefault(key, {})
                kind = "datasets/" if key.startswith("datasets/") else ""
                return self.json({"url": f"{hub.address}/{kind}{key.partition('/')[2]}"})
            if path == "/api/validate-yaml":
                return self.json({"errors": [], "warnings": []})
            kind, name, verb = re.fullmatch(r"/api/(models|datasets)/([^/]+/[^/]+)/(\w+)/main", path).groups()
            files = hub.repositories[f"{kind}/{name}"]
            if verb == "preupload":
                asked = json.loads(body)["files"]
                modes = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in asked]
                return self.json({"files": modes})
            for line in map(json.loads, body.decode().splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "deletedFile":
                    del files[value["path"]]
            self.json({"commitUrl": f"{hub.address}/{name}/commit/{COMMIT}", "commitOid": COMMIT})

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.address = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield hub
        server.shutdown()
