#!/usr/bin/env python3
"""Prints the licences of zklock and of the crates that are linked into it for the targets in argv: who distributes
the program must pass on their copyright notices. Debian wants this as the file `copyright`."""

import json
import pathlib
import re
import subprocess
import sys

# Debian does not want the text of this licence, which it has already.
APACHE = re.compile(r"^ *Apache License\n *Version 2\.0, January 2004\n.*?^ *END OF TERMS AND CONDITIONS\n", re.M | re.S)


def cargo(*arguments):
    return subprocess.run(["cargo", *arguments], check=True, capture_output=True, text=True).stdout


def notices(directory):
    """The texts of the licences of a crate. Where there is a choice, not Apache: its text has no notice in it."""
    files = [
        path
        for path in sorted(directory.iterdir())
        if path.is_file() and path.name.upper().startswith(("LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE"))
    ]
    others = [path for path in files if "APACHE" not in path.name.upper()]
    texts = [path.read_text(encoding="utf-8").strip() for path in others or files]
    return [APACHE.sub("[The Apache License, Version 2.0]\n", text) for text in texts]


def linked(targets):
    """The packages, as in `cargo metadata`, that are linked into zklock for these targets; zklock is one of them."""
    packages = {
        f"{package['name']} v{package['version']}": package
        for package in json.loads(cargo("metadata", "--locked", "--format-version=1"))["packages"]
    }
    targets = [f"--target={target}" for target in targets]
    tree = cargo("tree", "--locked", "--edges=normal,no-proc-macro", *targets, "--prefix=none", "--format={p}")
    return {name: packages[name] for name in sorted({" ".join(line.split()[:2]) for line in tree.splitlines() if line})}


def main():
    print(pathlib.Path("packaging/copyright").read_text(encoding="utf-8"))
    printed = {}
    for name, package in linked(sys.argv[1:]).items():
        if package["name"] == "zklock":
            continue
        texts = notices(pathlib.Path(package["manifest_path"]).parent)
        if not texts:
            sys.exit(f"{name} ({package['license']}) comes without a text of its licence")
        print(f"{'-' * 80}\n{name}: {package['license']}\n")
        for text in texts:
            same = printed.setdefault(text, name)
            print(text if same == name else f"The same text as for {same}.", end="\n\n")


if __name__ == "__main__":
    main()
