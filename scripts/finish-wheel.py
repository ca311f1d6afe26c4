"""Adds to a wheel what its licences and its users want: a list of the packages in it (an SBOM,
CycloneDX) and their copyright files.

    finish-wheel.py ROOT WHEEL DIR LINKED...

ROOT is that of scripts/debian-root.sh, LINKED are lists of the linker, DIR gets the wheel. Files
in it are sorted, and dated SOURCE_DATE_EPOCH."""
import base64
import hashlib
import json
import os
import pathlib
import re
import sys
import time
import zipfile

root, wheel = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
name, version = wheel.name.split("-")[:2]
info = f"{name}-{version}.dist-info"
with zipfile.ZipFile(wheel) as archive:
    members = {i.filename: (i.external_attr, archive.read(i)) for i in archive.infolist()
               if not i.is_dir()}


def in_root(path):
    """As a package of Debian names it: /lib is /usr/lib for the linker, but not for dpkg."""
    return str(pathlib.Path(path).resolve().relative_to(root.resolve()))


# Files of the root that are in the wheel: archives, and libraries that auditwheel renamed
# from libX.so.1 to libX-HASH.so.1.
used = set()
for linked in sys.argv[4:]:
    for path in re.findall(r"[^\s:\\]+\.a(?=[\s:]|$)", pathlib.Path(linked).read_text()):
        if root.resolve() in pathlib.Path(path).resolve().parents:
            used.add(in_root(path))
for member in members:
    if member.startswith(f"{name}.libs/"):
        library = re.sub(r"-[0-9a-f]{8}(?=\.so)", "", member.split("/")[1])
        [path] = {in_root(p) for p in root.glob(f"**/lib/*-linux-gnu/{library}")}
        used.add(path)

packages = {}  # name: (version, source, architecture), of those that have one of the files
for control in sorted((root / "var/lib/dpkg/info").glob("*/control")):
    files = control.with_name("md5sums").read_text() if control.with_name("md5sums").exists() else ""
    owned = {line.split(maxsplit=1)[1] for line in files.splitlines()}
    if found := owned & used:
        used -= found
        fields = dict(line.split(": ", 1) for line in control.read_text().splitlines()
                      if re.match(r"[A-Z][\w-]*: ", line))
        packages[fields["Package"]] = (
            fields["Version"], fields.get("Source", fields["Package"]).split()[0],
            fields["Architecture"])
[curl] = (root / "usr/src").glob("curl_*.dsc")  # compiled by scripts/debian-root.sh
packages["curl"] = (curl.stem.split("_")[1], "curl", "source")
used -= {"usr/local/lib/libcurl.a"}
# The C library is the host's, but a part of it is in every program.
if used - {f for f in used if f.endswith("/libc_nonshared.a")}:
    sys.exit(f"finish-wheel: {sorted(used)} are of no package of {root}: they would miss in the SBOM")


def component(package):
    number, source, arch = packages[package]
    return {"type": "library", "bom-ref": package, "name": package, "version": number,
            "purl": f"pkg:deb/debian/{package}@{number.replace('+', '%2B')}?arch={arch}"
                    f"&distro=debian-12",
            "properties": [{"name": "debian:source", "value": source}]}


stamp = time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"]))
this = {"type": "library", "bom-ref": name, "name": name, "version": version,
        "purl": f"pkg:pypi/{name}@{version}", "licenses": [{"license": {"id": "Apache-2.0"}}]}
sbom = {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {"timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", stamp), "component": this},
        "components": [component(p) for p in sorted(packages)],
        "dependencies": [{"ref": name, "dependsOn": sorted(packages)}]}

plain = 0o100644 << 16
members = {path: content for path, content in members.items() if "/sboms/" not in path}
members[f"{info}/sboms/{name}.cdx.json"] = (plain, json.dumps(sbom, indent=1).encode() + b"\n")
for package in packages:
    prefix = "usr/local" if package == "curl" else "usr"
    text = root / prefix / "share/doc" / package / "copyright"
    members[f"{info}/licenses/{package}"] = (plain, text.read_bytes())


def digest(content):
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


record = f"{info}/RECORD"
members[record] = (plain, "".join(
    f"{path},sha256={digest(content)},{len(content)}\n"
    for path, (_, content) in sorted(members.items()) if path != record).encode()
    + f"{record},,\n".encode())
with zipfile.ZipFile(pathlib.Path(sys.argv[3]) / wheel.name, "w", zipfile.ZIP_DEFLATED,
                     compresslevel=9) as archive:
    for path, (mode, content) in sorted(members.items()):
        member = zipfile.ZipInfo(path, stamp[:6])
        member.external_attr = mode
        member.compress_type = zipfile.ZIP_DEFLATED
        archive.writestr(member, content)
print(pathlib.Path(sys.argv[3]) / wheel.name)
