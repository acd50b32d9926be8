"""Check the installed packages for known vulnerabilities. Exit with 1 if one has any. Say so if no service answers."""

import json
import shutil
import subprocess
import sys
import sysconfig


def main() -> int:
    program = shutil.which("pip-audit")
    if program is None:
        print("audit: skipped, pip-audit is not installed; make audit installs it")
        return 0
    command = [program, "--path", sysconfig.get_path("purelib"), "--format", "json", "--progress-spinner", "off"]
    done = subprocess.run([*command, "--timeout", "10"], capture_output=True, text=True, check=False)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        print(f"audit: skipped, no service answered: {(done.stderr.strip().splitlines() or ['no answer'])[-1][:200]}")
        return 0
    return report(packages)


def report(packages: list[dict[str, object]]) -> int:
    """Print the results of pip-audit. Return 1 if a package has a known vulnerability."""
    checked = [package for package in packages if "vulns" in package]
    vulnerable = [package for package in checked if package["vulns"]]
    for package in vulnerable:
        print(f"audit: {package['name']} {package.get('version')} has known vulnerabilities: {package['vulns']}")
    if not checked:
        print(f"audit: skipped, none of {len(packages)} packages could be checked")
    else:
        print(
            f"audit: {len(checked)} of {len(packages)} packages checked, {len(vulnerable)} with known vulnerabilities"
        )
    return 1 if vulnerable else 0


if __name__ == "__main__":
    sys.exit(main())
