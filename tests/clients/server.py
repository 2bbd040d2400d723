"""`latent serve` with the demo model, for as long as a test needs it."""

import contextlib
import subprocess


@contextlib.contextmanager
def serving(latent, *options):
    """Starts a server with two threads on a port of its own, gives its address, and stops it."""
    command = [latent, "serve", "--port", "0", "--threads", "2", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield server.stdout.readline().split(" at ")[-1].strip()
        finally:
            server.terminate()
    # not in the way of an error in the test itself, which has passed here already
    assert server.returncode in (0, 143), server.returncode
