"""docs/tour.html in a browser: it makes no requests, its pictures react to the controls, and it
fits a phone."""
import pathlib

import pytest
from test_page import CONTRAST, TOO_WIDE

TOUR = pathlib.Path(__file__).resolve().parents[2] / "docs/tour.html"


@pytest.fixture
def tour(screen):
    screen.look(motion="reduce")  # nothing moves but what the test moves
    screen.open(TOUR.as_uri())
    screen.expect("bits, and deltawire's files")
    return screen


def move(screen, slider, value):
    screen.run("const e = document.getElementById(arguments[0]); e.value = arguments[1];"
               "e.dispatchEvent(new Event('input'))", slider, value)


def number(screen, selector, n=0):
    return float(screen.run("return document.querySelectorAll(arguments[0])[arguments[1]]"
                            ".textContent", selector, n).replace(",", "").split()[0])


def bits_a_change(screen):
    return [number(screen, "#costs b", i) for i in range(4)]


def test_asks_for_nothing_and_complains_of_nothing(tour):
    assert tour.requests() == [TOUR.as_uri()]
    assert tour.complaints() == []


def test_a_small_step_leaves_a_large_weight_alone(tour):
    move(tour, "size", -0.5)
    move(tour, "rate", -7)
    tour.find("#hundred").click()
    assert number(tour, "#still-say b", 0) == 100 and number(tour, "#still-say b", 1) == 0
    move(tour, "size", -4)
    move(tour, "rate", -4)
    tour.find("#hundred").click()
    assert number(tour, "#still-say b", 1) > 50


def test_the_field_flips_as_real_models_do(tour):
    for _ in range(20):
        tour.find("#one").click()
    share = float(tour.text("#field-say").split("On average ")[1].split(" %")[0])
    assert 0.3 < share < 4


def test_sizes_make_changes_cheaper_at_every_rate(tour):
    for rate in (-6.5, -6, -5):
        move(tour, "rate", rate)
        tour.wait(lambda: bits_a_change(tour)[3] < bits_a_change(tour)[2] < 32,
                  "the bars do not follow")
    move(tour, "rate", -6)
    tour.wait(lambda: 5 < bits_a_change(tour)[3] < 9, "not what real traces cost")


def test_steps_of_the_coder(tour):
    said = set()
    for button in tour.driver.find_elements("css selector", "#steps button"):
        button.click()
        assert button.get_attribute("aria-pressed") == "true"
        said.add(tour.text("#code-say"))
    assert len(said) == 4


def test_the_whole_model_takes_longer(tour):
    move(tour, "link", 2)  # 100 Mbit/s
    assert "5.8 MB travel" in tour.text("#time-say") and "30 ms" in tour.text("#time-say")
    tour.find("#ways button:nth-child(3)").click()
    assert "1208 MB travel" in tour.text("#time-say") and "193 s" in tour.text("#time-say")


@pytest.mark.parametrize("start, head, steps, megabytes", [
    (42, 43, 1, 5.8), (32, 48, 1, 5.98 * 5.8), (0, 20, 2, (5.98 + 2.61) * 5.8),
    (-1, 32, 1, 1208), (-1, 33, 2, 1208 + 5.8)])
def test_the_cheapest_route(tour, start, head, steps, megabytes):
    move(tour, "head", head)
    move(tour, "from", start)
    assert number(tour, "#late-say b", 0) == steps
    assert abs(number(tour, "#late-say b", 1) - megabytes) < 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", ["desk", "phone"])
def test_fits_and_can_be_read(tour, size, scheme):
    tour.look(size, scheme, motion="reduce")
    tour.wait(lambda: not tour.run(TOO_WIDE), "something is too wide")
    assert tour.run(CONTRAST) == []


def test_moves_by_itself_unless_asked_not_to(screen):
    screen.look(motion="no-preference")
    screen.open(TOUR.as_uri())
    screen.wait(lambda: number(screen, "#still-say b", 0) >= 2, "nothing moves")
    screen.find("#play").click()
    at = number(screen, "#still-say b", 0)
    screen.find("#one").click()
    assert number(screen, "#still-say b", 0) == at + 1
