"""A real nginx with its defaults: `proxy_pass` and nothing else, so that it hides who asks."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.support.investigations import PATIENCE, eventually
from tests.support.programs import kept_port

_CONFIGURATION = """
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        location / {{ proxy_pass {backend}; }}
    }}
}}
"""


@contextmanager
def nginx(backend: str, folder: Path) -> Iterator[str]:
    """The address at which it passes requests on to the backend."""
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    with kept_port() as port:
        written = folder / "nginx.conf"
        written.write_text(_CONFIGURATION.format(folder=folder, port=port, backend=backend))
        command = [program, "-p", str(folder), "-c", str(written), "-e", str(folder / "error.log")]
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        url = f"http://127.0.0.1:{port}"
        try:
            eventually(lambda: _answers(url))
            yield url
        finally:
            running.terminate()
            running.wait(PATIENCE)


def _answers(url: str) -> bool | None:
    try:
        return httpx.get(f"{url}/healthz", timeout=PATIENCE).status_code == 200 or None
    except httpx.TransportError:
        return None
