"""Takes docs/img/page.png and page-phone.png: twelve steps of a real run, followed live.

    DELTAWIRE=build/deltawire $(scripts/venv.sh)/bin/python tests/page/screenshots.py
"""
import base64
import os
import pathlib
import tempfile

from browser import Screen, start
from test_real import TRACE, Command, Stream

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHARED = pathlib.Path(os.environ.get("DW_SHARED", ROOT / "../shared")) / "data/rl-trace"


def shoot(screen, name, width, height):
    shot = screen.driver.execute_cdp_cmd("Page.captureScreenshot", {
        "format": "png", "captureBeyondViewport": True,
        "clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}})
    (ROOT / "docs/img" / name).write_bytes(base64.b64decode(shot["data"]))


def main():
    driver = start()
    with tempfile.TemporaryDirectory(prefix="deltawire-") as directory:
        directory = pathlib.Path(directory)
        stream = Stream(directory, SHARED if SHARED.exists() else TRACE)
        engine = "--engine exec --pause true --apply true --resume true".split()
        hosts = [Command("follow", stream.url, "--into", directory / name, "--id", name,
                         *(engine if name == "gpu01" else ()))
                 for name in ("gpu01", "gpu02", "gpu03")]
        screen = Screen(driver)
        screen.look()
        screen.open(hosts[0].url)
        for _ in range(12):
            stream.publish()
            screen.expect(f"Serving version {stream.version}", "#engines")
        screen.expect("3 of 3 followers have the newest version.", "#followers", 120)
        shoot(screen, "page.png", 1280, screen.run(
            "return document.getElementById('followers').getBoundingClientRect().bottom + 16"))
        screen.look("phone", "dark", scale=2)
        screen.wait(lambda: screen.run("return innerWidth") == 390, "no phone")
        screen.run("document.getElementById('charts').getBoundingClientRect()")
        shoot(screen, "page-phone.png", 390, 1000)
        for host in hosts:
            host.end()
    driver.quit()


if __name__ == "__main__":
    main()
