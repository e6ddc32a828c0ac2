#!/usr/bin/env python3
"""The web page in headless Chromium.

    web_page_test.py --page FOLDER   # as built (build/web_page), against a server of scripted answers
    web_page_test.py --url URL       # the page of a running server: what needs no scripted answers

Exits with 77 when the browser, its driver or the Python package selenium is missing.
"""

import argparse
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "web"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--page", help="folder with web_page.html and web_page.csp")
    what.add_argument("--url", help="of a running server")
    arguments, rest = parser.parse_known_args()
    try:
        from browser import programs
    except ImportError as error:
        print(f"skipped: {error} (pip install selenium)")
        return 77
    missing = [name for name, path in zip(("chromium", "chromedriver"), programs()) if path is None]
    if missing:
        print(f"skipped: {', '.join(missing)} not found (Debian: apt-get install chromium chromium-driver)")
        return 77

    import conversation_cases
    import look_cases
    import panel_cases
    from page_case import Case

    for module in (conversation_cases, look_cases, panel_cases):
        for name, value in vars(module).items():
            if isinstance(value, type) and issubclass(value, Case) and value is not Case:
                globals()[name] = value
    Case.open(arguments.url, arguments.page)
    try:
        return 0 if unittest.main(argv=[sys.argv[0], *rest], verbosity=2, exit=False).result.wasSuccessful() else 1
    finally:
        Case.close()


if __name__ == "__main__":
    sys.exit(main())
