"""A hub on loopback for llama.cpp's router tests, which serves the demo model under each name."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
# Models that llama.cpp's scripts download before the tests.
CACHED = {
    "ggml-org/tinygemma3-GGUF": "tinygemma3-Q8_0.gguf",
    "ggml-org/test-model-stories260K": "stories260K-F32.gguf",
    "ggml-org/test-model-stories260K-infill": "stories260K-infill-F32.gguf",
}
FILES = {**CACHED, "ggml-org/test-model-router-download": "router-download-F16.gguf"}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        is_api = parts[:2] == ["api", "models"]
        parts = parts[2:] if is_api else parts
        repo, rest = "/".join(parts[:2]), parts[2:]
        name = FILES.get(repo)
        if name is None:
            return self.reply(404, b"", {"x-error-code": "RepoNotFound"})
        if is_api and rest[:1] == ["revision"]:
            return self.reply(200, json.dumps({"id": repo, "sha": COMMIT}).encode())
        if is_api and rest == ["tree", COMMIT]:
            entry = {"type": "file", "path": name, "size": len(self.server.model), "oid": self.server.oid}
            return self.reply(200, json.dumps([entry]).encode())
        if rest == ["resolve", COMMIT, name]:
            return self.reply(200, self.server.model, {"etag": f'"{self.server.oid}"'})
        return self.reply(404, b"", {"x-error-code": "EntryNotFound"})

    def reply(self, status, body, headers={}):
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        """The output is that of the tests."""


def start(model):
    """Serves the bytes of a model until this process ends. Returns the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.model = model
    # The object id that git gives the file.
    server.oid = hashlib.sha1(b"blob %d\0" % len(model) + model).hexdigest()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"
