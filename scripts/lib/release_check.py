"""Whether what a release says of itself agrees: version, licence, citation, change log, metadata.

release_check.py [DIR]      prints each disagreement, exit 1 if any; DIR has the built packages
"""

import datetime
import email
import pathlib
import re
import subprocess
import sys
import tarfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOT_YET = "not released yet"


def version(root: pathlib.Path = ROOT) -> str:
    """From the one place that names it."""
    source = (root / "python/twell/__init__.py").read_text()
    found = re.search(r'^__version__ = "(.*)"', source, re.MULTILINE)
    return found[1] if found else "none"


def changes(root: pathlib.Path = ROOT) -> tuple[str, str]:
    """Version and date of the first entry of CHANGELOG.md; it may not have been released yet."""
    found = re.search(r"^## \[(\S+)\] - (.+)$", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    return (found[1], found[2]) if found else ("none", "none")


def is_date(text: str) -> bool:
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return True


def scalar(text: str, key: str) -> str:
    """Of a line `key: value` or `key = "value"` of YAML or TOML."""
    found = re.search(rf'^{key}(?::| =) "?([^"\n]*)"?$', text, re.MULTILINE)
    return found[1] if found else ""


def offences_of_sources(root: pathlib.Path = ROOT) -> list[str]:
    ours = version(root)
    first, date = changes(root)
    citation = (root / "CITATION.cff").read_text()
    project = (root / "pyproject.toml").read_text()
    licence = scalar(project, "license")
    header = (root / "include/twell/version.h").read_text()
    of_header = re.findall(r"^#define TWELL_VERSION(?:_\w+)? (\S+)$", header, re.MULTILINE)
    expected = [
        ("CHANGELOG.md begins with", first, ours),
        ("include/twell/version.h has", " ".join(of_header), f'{ours.replace(".", " ")} "{ours}"'),
        ("CITATION.cff has the version", scalar(citation, "version"), ours),
        ("CITATION.cff has the licence", scalar(citation, "license"), licence),
        (
            "LICENSE begins with",
            (root / "LICENSE").read_text().split("\n")[0],
            f"{licence} License",
        ),
        ("CITATION.cff has the format", scalar(citation, "cff-version"), "1.2.0"),
    ]
    found = [
        f"{what} '{has}', expected '{wanted}'" for what, has, wanted in expected if has != wanted
    ]
    if date != NOT_YET and not is_date(date):
        found.append(f"CHANGELOG.md dates {first} '{date}', expected YYYY-MM-DD or '{NOT_YET}'")
    for page in ("README.md", "python/README.md"):  # what a package's page shows
        text = (root / page).read_text()
        if (NOT_YET in text) != (date == NOT_YET):
            says = f"'{NOT_YET}'"
            found.append(f"{page} {'has' if NOT_YET in text else 'lacks'} {says}, CHANGELOG.md '{date}'")
        for other in sorted(set(re.findall(r"\b\d+\.\d+\.\d+\b", text)) - {ours}):
            found.append(f"{page} names version {other}, expected {ours}")
    for key in ("message", "title", "authors"):  # which the format wants
        if not re.search(rf"^{key}:", citation, re.MULTILINE):
            found.append(f"CITATION.cff has no {key}")
    return found


def offences_of_metadata(name: str, text: str) -> list[str]:
    """Of a wheel or a source archive."""
    fields = email.message_from_string(text)
    wanted = {"Name": "twell", "Version": version(), "License-Expression": "MIT"}
    found = [
        f"{name}: {key} is '{fields[key]}'" for key, value in wanted.items() if fields[key] != value
    ]
    needed = (
        "Summary",
        "Requires-Python",
        "Requires-Dist",
        "Description-Content-Type",
        "License-File",
    )
    return found + [f"{name}: no {key}" for key in needed if not fields[key]]


def offences_of_wheel(wheel: pathlib.Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        about = next(name for name in names if name.endswith(".dist-info/METADATA"))
        found = offences_of_metadata(wheel.name, archive.read(about).decode())
    for end in (".dist-info/licenses/LICENSE", "twell/libtwell_torch.so", "twell/py.typed"):
        if not any(name.endswith(end) for name in names):
            found.append(f"{wheel.name}: no {end}")
    return found


def offences_of_sdist(archive: pathlib.Path) -> list[str]:
    top = f"twell-{version()}"
    with tarfile.open(archive) as tar:
        names = set(tar.getnames())
        about = tar.extractfile(f"{top}/PKG-INFO").read().decode()
    found = offences_of_metadata(archive.name, about)
    for name in ("LICENSE", "README.md", "CITATION.cff", "docs/pytorch.md", "scripts/test"):
        if f"{top}/{name}" not in names:
            found.append(f"{archive.name}: no {name}")
    return found + [
        f"{archive.name}: {name}" for name in names if "/build/" in name or "/.venv" in name
    ]


def offences_of_deb(package: pathlib.Path) -> list[str]:
    text = subprocess.run(
        ["dpkg-deb", "-f", package], capture_output=True, check=True, text=True
    ).stdout
    fields = email.message_from_string(text)
    name = fields["Package"]
    found = []
    if fields["Version"] != version():
        found.append(f"{package.name}: Version is '{fields['Version']}'")
    found += [
        f"{package.name}: no {key}"
        for key in ("Maintainer", "Section", "Description", "Architecture")
        if not fields[key]
    ]
    listing = subprocess.run(
        ["dpkg-deb", "-c", package], capture_output=True, check=True, text=True
    ).stdout
    found += [
        f"{package.name}: no {file}"
        for file in ("copyright", "changelog.gz")
        if f"usr/share/doc/{name}/{file}" not in listing
    ]
    return found


def offences_of_packages(folder: pathlib.Path) -> list[str]:
    found = []
    for pattern, count, check in (
        ("twell-*.whl", 1, offences_of_wheel),
        (f"twell-{version()}.tar.gz", 1, offences_of_sdist),
        ("*.deb", 3, offences_of_deb),
    ):
        files = sorted(folder.glob(pattern))
        if len(files) != count:
            found.append(f"{folder}: {len(files)} files {pattern}, expected {count}")
        for file in files:
            found += check(file)
    return found


if __name__ == "__main__":
    problems = offences_of_sources()
    for argument in sys.argv[1:]:
        problems += offences_of_packages(pathlib.Path(argument))
    if changes()[1] == NOT_YET:
        print(f"CHANGELOG.md: {version()} is {NOT_YET}; its release gives it a date")
    print("\n".join([*problems, f"release_check: {version()}, {len(problems)} disagreements"]))
    sys.exit(bool(problems))
