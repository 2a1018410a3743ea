"""Ask pip-audit whether any installed dependency has a known vulnerability.

    python scripts/audit.py

Ends with 0 if none has, 1 if one has, 77 if nobody knows: pip-audit is not installed, or the database of advisories
did not answer. An answer counts only if most of the packages were found in it: of a mirror without advisories, pip-
audit itself says "no known vulnerabilities".
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

UNKNOWN = 77
COMMAND = [sys.executable, "-m", "pip_audit", "--local", "--skip-editable", "--progress-spinner", "off", "-f", "json"]


def judge(answer: dict[str, Any]) -> tuple[int, str]:
    """The exit code and the words for what pip-audit answered."""
    packages = [one for one in answer["dependencies"] if one["name"] != "tokenphormer"]
    looked_up = [one for one in packages if "vulns" in one]
    if 2 * len(looked_up) < len(packages) or not packages:
        return (
            UNKNOWN,
            f"skipped: the database knew {len(looked_up)} of {len(packages)} packages; is it a mirror without?",
        )
    found = [(one, flaw) for one in looked_up for flaw in one["vulns"]]
    lines = [
        f"{one['name']} {one['version']}: {flaw['id']}, mended in {', '.join(flaw['fix_versions']) or 'no version yet'}"
        for one, flaw in found
    ]
    if lines:
        return 1, "\n".join(lines)
    return (
        0,
        f"no known vulnerability in {len(looked_up)} packages ({len(packages) - len(looked_up)} not in the database)",
    )


def audit(seconds: float) -> tuple[int, str]:
    """Run pip-audit for at most so many seconds."""
    if find_spec("pip_audit") is None:
        return UNKNOWN, "skipped: pip-audit is not installed (pip install tokenphormer[audit])"
    try:
        done = subprocess.run(
            [*COMMAND, "--timeout", "10"], capture_output=True, text=True, timeout=seconds, check=False
        )
        return judge(json.loads(done.stdout))
    except subprocess.TimeoutExpired:
        return UNKNOWN, f"skipped: the database of advisories did not answer within {seconds:.0f} s"
    except (ValueError, KeyError, TypeError):
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        return UNKNOWN, f"skipped: the database of advisories cannot be reached ({reason[:200]})"


def main() -> int:
    """Audit, and say what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=120.0, help="to wait for an answer")
    code, words = audit(parser.parse_args().seconds)
    print(words)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
