"""Adds the program to a wheel of the Python package, as the command `latent`.

    python3 packaging/wheel.py IN.whl PROGRAM OUT-FOLDER
"""

import base64
import hashlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path


def needed_glibc(program):
    """The newest glibc version that a program's symbols need, or (0, 0)."""
    try:
        text = subprocess.run(["objdump", "-T", program], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return (0, 0)
    return max((tuple(map(int, found)) for found in re.findall(r"GLIBC_(\d+)\.(\d+)", text)), default=(0, 0))


def digest(content):
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def main(source, program, folder):
    source, program, folder = Path(source), Path(program), Path(folder)
    name, version = source.name.split("-")[:2]
    content = program.read_bytes()
    info = f"{name}-{version}.dist-info"
    files = {}
    with zipfile.ZipFile(source) as wheel:
        for entry in wheel.infolist():
            files[entry.filename] = (entry, wheel.read(entry))
    # The program may need a newer glibc than the module. pip must then refuse the wheel on older
    # systems.
    target = source.name
    tag = re.search(r"manylinux_(\d+)_(\d+)(?:\.manylinux\d+)?", target)
    needed = needed_glibc(program)
    if tag and needed > (int(tag[1]), int(tag[2])):
        newer = f"manylinux_{needed[0]}_{needed[1]}"
        target = target.replace(tag[0], newer)
        entry, text = files[f"{info}/WHEEL"]
        files[f"{info}/WHEEL"] = (entry, re.sub(rb"manylinux_\d+_\d+|manylinux\d+", newer.encode(), text))
    script = zipfile.ZipInfo(f"{name}-{version}.data/scripts/{program.name}", files[f"{info}/WHEEL"][0].date_time)
    script.external_attr = 0o100755 << 16
    script.compress_type = zipfile.ZIP_DEFLATED
    files[script.filename] = (script, content)
    record = f"{info}/RECORD"
    # RECORD comes last, as in wheels that pip's own tools write.
    entry, _ = files.pop(record)
    lines = [f"{path},sha256={digest(data)},{len(data)}\n" for path, (_, data) in files.items()]
    files[record] = (entry, "".join([*lines, f"{record},,\n"]).encode())
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{target}.part"
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as wheel:
        for entry, data in files.values():
            wheel.writestr(entry, data)
    os.replace(part, folder / target)
    print(f"wheel: {target}, with the command {program.name}")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
