#!/usr/bin/env python3
"""Prints an SBOM in the format of CycloneDX, of the crates that are linked into zklock for the targets in argv. A
serial number or a time would make each one another file."""

import json
import sys

from licences import linked


def component(package):
    fields = {
        "type": "application",
        "name": package["name"],
        "version": package["version"],
        # Old crates have a slash, which SPDX does not.
        "licenses": [{"expression": package["license"].replace("/", " OR ")}],
    }
    if package["source"]:
        purl = f"pkg:cargo/{package['name']}@{package['version']}"
        fields |= {"type": "library", "bom-ref": purl, "purl": purl}
    return fields


components = [component(package) for package in linked(sys.argv[1:]).values()]
bom = {
    "bomFormat": "CycloneDX",
    "specVersion": "1.5",
    "version": 1,
    "metadata": {"component": next(each for each in components if each["type"] == "application")},
    "components": [each for each in components if each["type"] == "library"],
}
print(json.dumps(bom, indent=2))
