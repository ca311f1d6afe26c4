"""Debian's headless Chromium, and questions about the page that it shows."""
import json
import os
import pathlib
import shutil

import pytest

os.environ["no_proxy"] = "*"  # driver, browser and agent are all on this host

SIZES = {"desk": (1280, 900), "phone": (390, 844)}


class Screen:
    """The browser with one page open, and the tests' questions about it."""

    def __init__(self, driver):
        self.driver = driver
        self.run = driver.execute_script

    def look(self, size="desk", scheme="light", motion="no-preference", scale=1):
        width, height = SIZES[size]
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": scale, "mobile": False})
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": motion}]})

    def open(self, url):
        self.driver.get("about:blank")
        self.driver.get_log("performance")
        self.driver.get_log("browser")
        self.driver.get(url)

    def wait(self, condition, what, seconds=120):
        """Waits until CONDITION is true; the deadline only ends a failing test."""
        from selenium.common.exceptions import TimeoutException
        from selenium.webdriver.support.ui import WebDriverWait
        try:
            return WebDriverWait(self.driver, seconds, 0.05).until(lambda _: condition())
        except TimeoutException:
            pytest.fail(f"{what}; the page says:\n{self.text()}")

    def text(self, selector="body"):
        """The visible text, with non-breaking spaces as spaces."""
        return self.run("const e = document.querySelector(arguments[0]);"
                        "return e?.checkVisibility() ? e.innerText : ''",
                        selector).replace("\u00a0", " ")

    def expect(self, text, selector="body", seconds=120):
        self.wait(lambda: text in self.text(selector), f"no '{text}' in {selector}", seconds)

    def expect_gone(self, text, selector="body"):
        self.wait(lambda: text not in self.text(selector), f"'{text}' stays in {selector}")

    def find(self, selector):
        return self.driver.find_element("css selector", selector)

    def requests(self):
        """The addresses of all requests since the page was opened."""
        events = (json.loads(entry["message"])["message"]
                  for entry in self.driver.get_log("performance"))
        return [event["params"]["request"]["url"] for event in events
                if event["method"] == "Network.requestWillBeSent"]

    def complaints(self):
        return [entry["message"] for entry in self.driver.get_log("browser")
                if entry["level"] in ("SEVERE", "WARNING")]


def start():
    """A browser; None if there is none."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    browser, control = shutil.which("chromium"), shutil.which("chromedriver")
    if not browser or not control:
        return None
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "hide-scrollbars",
                     "disable-dev-shm-usage", "no-proxy-server",
                     # without these and the library it asks its maker's servers for news
                     "disable-background-networking",
                     "host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"):
        options.add_argument("--" + argument)
    library = pathlib.Path(os.environ.get("DELTAWIRE", "")).parent / "tests/libloopback_only.so"
    env = {**os.environ, "LD_PRELOAD": str(library)} if library.exists() else None
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=Service(control, env=env))
