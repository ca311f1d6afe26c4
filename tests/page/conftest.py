"""One browser for all tests of the page; without one, they are skipped."""
import pytest
from browser import Screen, start


@pytest.fixture(scope="session")
def driver():
    driver = start()
    if not driver:
        pytest.skip("no chromium and chromium-driver here: the page is not tested")
    yield driver
    driver.quit()


@pytest.fixture
def screen(driver):
    screen = Screen(driver)
    screen.look()
    yield screen
    driver.get("about:blank")
