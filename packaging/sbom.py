"""Writes the packages of the program as a CycloneDX document, from Cargo.lock.

    python3 packaging/sbom.py TARGET [FEATURE FLAGS OF CARGO]
"""

import json
import subprocess
import sys

PROGRAM = "latent-cli"


def linked(target, features):
    """Names and versions of the packages that are linked into the program or needed to build it."""
    command = ["cargo", "tree", "--locked", "--package", PROGRAM, "--target", target, "--edges", "normal,build"]
    command += ["--prefix", "none", "--format", "{p}", *features]
    tree = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {tuple(line.split()[:2]) for line in tree.splitlines() if line}


def component(package, kind="library"):
    name, version = package["name"], package["version"]
    found = {"type": kind, "bom-ref": package["id"], "name": name, "version": version}
    if package["source"]:
        found["purl"] = f"pkg:cargo/{name}@{version}"
    if package["license"]:
        found["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    return found


def main(target, *features):
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target]
    metadata = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    root = next(id for id in metadata["workspace_members"] if packages[id]["name"] == PROGRAM)
    # `cargo metadata` resolves the features of the whole workspace, not those of the program.
    program = linked(target, features)
    seen = {id for id, package in packages.items() if (package["name"], f"v{package['version']}") in program}
    others = sorted(seen - {root}, key=lambda id: (packages[id]["name"], packages[id]["version"]))
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component(packages[root], "application")},
        "components": [component(packages[id]) for id in others],
        "dependencies": [
            {"ref": id, "dependsOn": sorted(dep["pkg"] for dep in nodes[id]["deps"] if dep["pkg"] in seen)}
            for id in [root, *others]
        ],
    }
    # Package ids contain the path of the checkout, so they are not reproducible.
    text = json.dumps(document, indent=1).replace(f"path+file://{metadata['workspace_root']}", "path+file:///latent")
    print(text)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])
