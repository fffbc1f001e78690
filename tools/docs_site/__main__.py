"""Build the documentation site: `python -m tools.docs_site`, which `make docs` runs. A warning is an error.

The pages are staged in `build/docs/pages`, built into `build/docs/site`, and every link of the result is followed.
"""

from __future__ import annotations

import subprocess
import sys
import time
import tomllib
from pathlib import Path

from tools.docs_site import llms
from tools.docs_site.check import faults
from tools.docs_site.staging import stage

ROOT = Path(__file__).parents[2]
PAGES, SITE = ROOT / "build/docs/pages", ROOT / "build/docs/site"


def main() -> int:
    """Build and check the site; return 1 where a page, a link or a file is wrong."""
    began = time.monotonic()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    urls = project.get("urls", {})
    pages = stage(ROOT, PAGES, f"{urls['Repository']}/blob/main" if "Repository" in urls else None)
    build = [str(Path(sys.executable).with_name("zensical")), "build", "--strict", "--clean"]
    if subprocess.run(build, cwd=ROOT, check=False).returncode:
        return 1
    wrong = faults(SITE, PAGES, ROOT / "mkdocs.yml")
    llms.write(SITE, PAGES, ROOT / "mkdocs.yml", urls.get("Documentation"))
    for fault in wrong:
        print(f"docs wrong: {fault}")
    took = time.monotonic() - began
    print(f"docs built: {len(pages)} pages in {took:.1f} s, {len(wrong)} faults; {SITE / 'index.html'}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
