"""Runs `latent serve` with the demo model during a test."""

import contextlib
import subprocess


@contextlib.contextmanager
def serving(latent, *options):
    """Starts a server with two threads on a free port, yields its address, and stops it."""
    command = [latent, "serve", "--port", "0", "--threads", "2", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield server.stdout.readline().split(" at ")[-1].strip()
        finally:
            server.terminate()
    # Checked last, so that this does not hide an error of the test itself.
    assert server.returncode in (0, 143), server.returncode
