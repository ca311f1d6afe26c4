"""The page of a fake agent (play_agent.py) in a browser."""
import copy

import pytest
from play_agent import (STATES, Agent, engine, follower, history, rfc, status, trouble)

HEADLINES = {
    "plain": "Serving the newest weights", "empty": "No version here yet",
    "wrong": "Not ready", "stream": "Version 60 is the newest",
    "one": "Serving the newest weights", "base": "Serving the newest weights",
    "behind": "2 versions behind", "many": "Serving the newest weights",
    "full": "Serving the newest weights",
}

# The text nodes whose contrast to the background is below WCAG AA. A canvas parses the
# colours, because it understands all of CSS.
CONTRAST = """
const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
function rgba(colour) {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
}
const luminance = c => [.2126, .7152, .0722].reduce((sum, w, i) => {
    const x = c[i] / 255;
    return sum + w * (x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4);
}, 0);
const poor = [];
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walk.nextNode()) {
    const node = walk.currentNode.parentElement, style = getComputedStyle(node);
    if (!walk.currentNode.data.trim() || !node.checkVisibility() ||
        node.closest('script, style, template, noscript')) continue;
    let behind = node;
    while (behind && rgba(getComputedStyle(behind).backgroundColor)[3] < 255)
        behind = behind.parentElement;
    const fore = luminance(rgba(node.closest('svg') ? style.fill : style.color));
    const back = luminance(rgba(getComputedStyle(behind ?? document.body).backgroundColor));
    const ratio = (Math.max(fore, back) + .05) / (Math.min(fore, back) + .05);
    if (ratio < 4.5) poor.push(`${ratio.toFixed(2)}: ${walk.currentNode.data.trim()}`);
}
return poor;
"""

# Elements that stick out at the right or make the page scroll sideways.
TOO_WIDE = """
return [...document.querySelectorAll('html, body *')].filter(e => e.checkVisibility() &&
    !e.closest('#sprite') && (e.getBoundingClientRect().right > innerWidth + 1 ||
        e === document.documentElement && e.scrollWidth > innerWidth))
    .map(e => e.outerHTML.slice(0, 80));
"""

# Whether the charts fill their width: they are redrawn after it changed.
DRAWN = """
return [...document.querySelectorAll('.plot .grid')].every(line => {
    const room = line.closest('.plot').getBoundingClientRect();
    return Math.abs(room.right - line.getBoundingClientRect().right - 30) < 30;
});
"""


@pytest.fixture
def agent():
    agent = Agent()
    yield agent
    agent.stop()


def publish(agent, n=1, **changes):
    """N more versions, which the host has applied."""
    now = copy.deepcopy(agent.answer)
    for row in history(n, now["head"]["version"] + 1, seed=n):
        now["history"].append(row | changes)
    at = now["history"][-1]["version"]
    now["head"] = {"version": at, "created": rfc(), "step": ""}
    now["follower"]["version"] = at
    agent.answer = now
    return at


def plots(screen, what):
    return screen.run("return [...document.querySelectorAll('.plot')].map("
                      "p => p.getAttribute(arguments[0]))", what)


@pytest.mark.parametrize("state", STATES)
def test_every_state(screen, agent, state):
    agent.answer = STATES[state]()
    screen.open(agent.url)
    screen.expect(HEADLINES[state], "h1")
    for look in ("desk", "light"), ("desk", "dark"), ("phone", "light"), ("phone", "dark"):
        screen.look(*look)
        screen.wait(lambda: screen.run(DRAWN), "the charts have another width")
        assert screen.run(TOO_WIDE) == [], look
        assert screen.run(CONTRAST) == [], look
    for nonsense in "NaN", "undefined", "null", "Infinity", "[object":
        assert nonsense not in screen.text()
    assert screen.complaints() == []
    assert [u for u in screen.requests() if not u.startswith((agent.url, "data:"))] == []


def test_marks_stand_out(screen, agent):
    """Colours of charts and icons: 3:1 on a card, in both schemes."""
    names = ["bar", "faint", "fetch", "decode", "ready", "pause", "scatter", "update",
             "resume", "finish", "ok", "warn", "bad", "accent", "quiet"]
    script = CONTRAST[:CONTRAST.index("const poor")] + """
        const style = getComputedStyle(document.documentElement);
        const light = name => luminance(rgba(style.getPropertyValue('--' + name)));
        return arguments[0].map(name => [name, (Math.max(light(name), light('card')) + .05) /
            (Math.min(light(name), light('card')) + .05)]);"""
    for scheme in "light", "dark":
        screen.look("desk", scheme)
        screen.open(agent.url)
        assert [pair for pair in screen.run(script, names) if pair[1] < 3] == []


def test_numbers_have_units(screen, agent):
    row = agent.answer["history"][-1]
    row |= {"bytes": 12_345_678, "density": 0.0113, "changed": 6_735_364,
            "bits_per_change": 6.754, "stopped_ms": 12.34, "update_ms": 1234.5}
    screen.open(agent.url)
    screen.expect("12.3 MB, 97 times less than the whole model", "#charts")
    screen.expect("The whole model is 1.19 GB.", "#charts")
    screen.expect("1.13 %: 6.74 million weights at 6.75 bits each", "#charts")
    screen.expect("12.3 ms", "figure:nth-child(4)")
    screen.expect("update 1.23 s", "figure:nth-child(3)")
    screen.expect("step 192", "#tiles")


def test_new_versions_without_reload(screen, agent):
    screen.open(agent.url)
    screen.expect("24", "#tiles")
    screen.run("""window.mark = document.querySelector('.plot');
        window.shift = 0;
        new PerformanceObserver(list => list.getEntries().forEach(e => shift += e.value))
            .observe({type: 'layout-shift'});""")
    for _ in range(3):
        at = publish(agent)
        screen.expect(f"Version {at}:", "figure:nth-child(1)")
        screen.expect(f"Version {at}:", "figure:nth-child(4)")
        screen.expect(str(at), "#tiles")
    assert screen.run("return mark === document.querySelector('.plot')"), "it was reloaded"
    assert screen.run("return shift") < 0.005, "things jump when a version comes"
    assert agent.asked[0] == "" and "" not in agent.asked[1:], "all of it is asked for again"
    assert f"since={at - 1}" in agent.asked
    assert screen.complaints() == []


def test_times_that_come_later(screen, agent):
    """A version is known before it is applied: its row changes, and the count shows it."""
    agent.answer = status(n=30, behind=2)
    screen.open(agent.url)
    screen.expect("Version 28:", "figure:nth-child(4)")
    screen.expect("not here yet", "figure:nth-child(1)")
    agent.answer = status(n=30) | {"history_seq": 2, "started": agent.answer["started"]}
    screen.expect("Version 30:", "figure:nth-child(4)")
    screen.expect_gone("not here yet", "figure:nth-child(1)")


def test_an_agent_that_started_again(screen, agent):
    agent.answer = status(n=300)
    screen.open(agent.url)
    screen.expect("300 versions: ", "#charts")
    agent.answer = status(n=5, start=290) | {"started": rfc(1)}
    screen.expect("5 versions: ", "#charts")


def test_scale_holds_and_cuts(screen, agent):
    agent.answer = status(n=20, start=0)
    screen.open(agent.url)
    screen.expect("▲ beyond the scale: 1.19 GB.", "figure:nth-child(1)")
    screen.expect("8 MB", "figure:nth-child(1)")


def test_scale_does_not_shrink_at_once(screen, agent):
    agent.answer = status(n=512)
    for row in agent.answer["history"]:
        row["bytes"] = 5_500_000
    agent.answer["history"][0]["bytes"] = 7_000_000
    screen.open(agent.url)
    screen.expect("8 MB", "figure:nth-child(1)")
    at = publish(agent, bytes=5_500_000)  # the large one is dropped; the others would fit below 6 MB
    screen.expect(f"Version {at}:", "figure:nth-child(1)")
    assert plots(screen, "aria-valuemin")[0] == "2"
    assert "8 MB" in screen.text("figure:nth-child(1)")


def test_window_of_512(screen, agent):
    agent.answer = status(n=512)
    screen.open(agent.url)
    screen.expect("512 versions: ", "#charts")
    at = publish(agent)
    screen.expect(f"Version {at}:", "#charts")
    assert plots(screen, "aria-valuemin") == ["2"] * 4


def test_agent_goes_and_comes(screen, agent):
    screen.open(agent.url)
    screen.expect("● live", "#top")
    port = agent.port
    agent.stop()
    screen.expect("No answer from the agent for", "#banner")
    screen.expect("last seen", "#banner")
    screen.expect("No answer from the agent", "h1")
    screen.expect("Its last report: Serving the newest weights.", "#why")
    before = screen.text("#banner")
    screen.wait(lambda: screen.text("#banner") != before, "the time does not grow")
    again = Agent(port)
    try:
        screen.expect("Serving the newest weights", "h1")
        assert screen.text("#banner") == "" and "live" in screen.text("#top")
    finally:
        again.stop()
        agent.server = Agent().server


def test_agent_that_hangs(screen, agent):
    screen.open(agent.url)
    screen.expect("● live", "#top")
    agent.may_answer.clear()
    screen.expect("No answer from the agent for", "#banner")
    agent.may_answer.set()
    screen.expect("● live", "#top")


def test_never_an_answer(screen, agent):
    agent.refuse = (503, "starting up")
    screen.open(agent.url)
    screen.expect("The agent answers with an error (503): starting up", "#banner")
    assert not screen.find("#rest").is_displayed()
    agent.refuse = None
    screen.expect("Serving the newest weights", "h1")


def test_answer_that_makes_no_sense(screen, agent):
    screen.open(agent.url)
    screen.expect("Serving", "h1")
    for text in "<html>", "[]", "null", '{"error": {"text": "<b>no</b>"}}':
        agent.refuse = (200, text)
        screen.expect("The agent answers what this page cannot read.", "#banner")
    agent.refuse = (500, '{"error": {"code": "io", "text": "<b>no</b>"}}')
    screen.expect("(500): <b>no</b>", "#banner")


def test_token_in_the_address(screen, agent):
    agent.token = "se+cr=et"
    screen.open(agent.url)
    screen.expect("The agent wants a token", "#banner")
    screen.run("location.hash = 'token=' + encodeURIComponent('se+cr=et')")
    screen.expect("Serving the newest weights", "h1")
    screen.open(agent.url + "#token=se%2Bcr%3Det")
    screen.expect("Serving the newest weights", "h1")
    assert not [u for u in screen.requests() if "token" in u.split("#")[0]]


def test_hostile_texts_stay_text(screen, agent):
    bad = "<img src=x onerror='window.owned=1'><script>window.owned=1</script>\u202e&lt;"
    answer = agent.answer
    answer["stream"] = answer["stream"] | {"url": bad, "id": bad}
    answer["head"]["step"] = bad
    answer["follower"] |= {"id": bad, "dir": bad, "phase": "constructor"}
    answer["engines"] = [engine(state, 1, bad, trouble(bad, bad, bad, 5), bad, bad)
                         for state in ("serving", "broken", bad, "constructor")]
    answer["followers"] = [follower(bad, 1, 24, 5, bad, bad),
                           follower("constructor", 1, 24, 5, "constructor"),
                           follower("__proto__", 1, 24, 5, "__proto__")]
    answer["error"] = {"code": bad, "where": bad, "text": bad, "since": rfc(5)}
    answer["errors"] = [trouble(bad, bad, bad, 5), trouble(bad, bad, bad, 9, 4)]
    answer["deltawire"] = answer["reason"] = bad
    for ready in True, False:
        answer["ready"] = ready
        screen.look("phone")
        screen.open(agent.url)
        screen.expect("<img src=x", "#followers")
        screen.expect("<img src=x", "#errors")
        screen.expect("<img src=x", "#engines")
        assert screen.run("return window.owned") is None
        assert screen.run("return document.querySelectorAll('img, script')"
                          ".length") == 1, "there is one script, the page's"
        assert screen.run("return document.documentElement.scrollWidth") <= 390
        assert screen.complaints() == []


def test_engines_and_errors_in_words(screen, agent):
    agent.answer = STATES["wrong"]()
    screen.open(agent.url)
    for words in ("Behind still serves version 36", "Paused for an update",
                  "Broken its weights may be a mix", "CUDA out of memory",
                  "Away does not answer", "Unknown not asked yet"):
        screen.expect(words, "#engines")
    shapes = screen.run("return [...document.querySelectorAll('#engines use')]"
                        ".map(u => u.getAttribute('href'))")
    assert len(set(shapes)) == 5, "a state is known by more than its colour"
    screen.expect("Connection refused; is the server up?", "#wrong")
    screen.expect("for 1 min 3", "#wrong")
    screen.expect("over after 2 s", "#errors")
    agent.answer = STATES["plain"]()
    screen.wait(lambda: screen.text("#wrong") == "", "the error stays")


@pytest.mark.parametrize("changes, headline, why", [
    ({"error": {"code": "io", "where": "", "text": "disk", "since": rfc(3)}},
     "At version 24, with trouble", "shown below"),
    ({"follower": {"pinned": 24}, "lag": {"versions": 0, "seconds": 0.0}},
     "Held at version 24", "Newer ones will not be taken"),
    ({"follower": {"pinned": 24}, "lag": {"versions": 3, "seconds": 90.0}},
     "Held at version 24", "3 versions ahead"),
    ({"follower": {"pinned": 9}}, "On the way to version 9", ""),
    ({"lag": {"versions": 1, "seconds": 2.0},
      "follower": {"phase": "apply", "phase_version": 25}}, "1 version behind",
     "Writing version 25 into the weights; the engines stand still."),
    ({"lag": {"versions": None, "seconds": None}}, "At version 24", "not known"),
    ({"engines": []}, "The newest weights are here", ""),
    ({"kind": "stream", "follower": None, "engines": [], "head": None, "ready": False,
      "reason": "no version yet", "history": [], "followers": []},
     "Nothing is published yet", "no version yet"),
    ({"kind": "stream", "follower": None, "engines": []}, "Version 24 is the newest",
     "The slowest follower is 2 versions behind."),
    ({"kind": "stream", "follower": None, "engines": [], "followers": [
        follower("a", 3, 24, 900), follower("b", 3, 24, 5, "stopped")]},
     "Version 24 is the newest", "No follower that reports is behind."),
])
def test_headlines(screen, agent, changes, headline, why):
    for name, change in changes.items():
        if name == "follower" and change:
            change = agent.answer["follower"] | change
        agent.answer[name] = change
    screen.open(agent.url)
    screen.expect(headline, "h1")
    screen.expect(why, "#why")


def test_charts_by_keyboard(screen, agent):
    from selenium.webdriver.common.keys import Keys
    screen.open(agent.url)
    screen.expect("Version 24:", "#charts")
    plot = screen.find("figure:nth-child(2) .plot")
    reached = []
    for _ in range(10):
        screen.driver.switch_to.active_element.send_keys(Keys.TAB)
        reached.append(screen.run("return document.activeElement.getAttribute('aria-label')"))
    assert {"Payload by version", "Density by version", "Time of an update by version",
            "Pause by version"} <= set(reached)
    plot.send_keys(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert plots(screen, "aria-valuenow") == ["22"] * 4, "all charts point at one version"
    publish(agent)
    screen.expect("25", "#tiles")
    assert plots(screen, "aria-valuenow") == ["22"] * 4, "it stays when a version comes"
    plot.send_keys(Keys.HOME)
    assert plots(screen, "aria-valuenow") == ["1"] * 4
    assert "Version 1: 1." in plots(screen, "aria-valuetext")[1].replace("\u00a0", " ")
    plot.send_keys(Keys.PAGE_UP)
    assert plots(screen, "aria-valuenow") == ["11"] * 4
    plot.send_keys(Keys.ESCAPE)
    assert plots(screen, "aria-valuenow") == ["25"] * 4


@pytest.mark.parametrize("size", ["desk", "phone"])
def test_nothing_moves_under_the_pointer(screen, agent, size):
    from selenium.webdriver.common.keys import Keys
    agent.answer = status(n=40, behind=2, start=0)
    screen.look(size)
    screen.open(agent.url)
    screen.expect("Version 39:", "#charts")
    tops = "return [...document.querySelectorAll('.plot')].map(p => p.offsetTop)"
    before = screen.run(tops)
    plot = screen.find(".plot")
    plot.send_keys(Keys.HOME)
    for _ in range(40):
        assert screen.run(tops) == before, plots(screen, "aria-valuetext")
        plot.send_keys(Keys.ARROW_RIGHT)
    assert plots(screen, "aria-valuenow")[:2] == ["39", "39"]


def test_charts_by_mouse_and_touch(screen, agent):
    from selenium.webdriver import ActionChains
    screen.open(agent.url)
    screen.expect("Version 24:", "#charts")
    plot = screen.find("figure:nth-child(1) .plot")
    ActionChains(screen.driver).move_to_element(plot).perform()
    now = int(plots(screen, "aria-valuenow")[3])
    assert 8 < now < 16 and plots(screen, "aria-valuenow") == [str(now)] * 4
    assert screen.run("return document.querySelectorAll('.cursor').length") == 4
    ActionChains(screen.driver).move_to_element(screen.find("h1")).perform()
    assert plots(screen, "aria-valuenow") == ["24"] * 4
    box = screen.run("const b = arguments[0].getBoundingClientRect();"
                     "return [b.left, b.top, b.width]", plot)
    touch = {"x": box[0] + box[2] - 12, "y": box[1] + 60}
    for kind, points in ("touchStart", [touch | {"x": touch["x"] - 60}]), \
            ("touchEnd", []):
        screen.driver.execute_cdp_cmd("Input.dispatchTouchEvent",
                                      {"type": kind, "touchPoints": points})
    screen.wait(lambda: "24" > plots(screen, "aria-valuenow")[0] > "18", "no touch")


def test_followers_by_lag(screen, agent):
    agent.answer = STATES["wrong"]()
    screen.open(agent.url)
    screen.expect("gpu09-42cc", "#followers")

    def ids():
        return screen.run("return [...document.querySelectorAll('tbody td:first-child "
                          "span:first-child')].map(s => s.textContent.slice(0, 5))")
    assert ids() == ["gpu09", "gpu08", "gpu07", "gpu03", "gpu06", "gpu04", "gpu05"]
    screen.find("[data-sort=lag]").click()
    assert ids() == ["gpu04", "gpu05", "gpu06", "gpu03", "gpu07", "gpu08", "gpu09"]
    assert screen.find("th[aria-sort]").get_attribute("aria-sort") == "ascending"
    screen.find("[data-sort=id]").click()
    assert ids() == sorted(ids())
    screen.find("[data-sort=age_seconds]").click()
    assert ids()[0] == "gpu08"
    stale = screen.text("tr.stale")
    assert "Silent (was following)" in stale and "1 h 6 min ago" in stale
    screen.expect("1 sent no report for more than 3 min.", "#followers")
    screen.expect("no space left on /models", "#followers")
    assert screen.text("tbody").count("this host") == 1


def test_hold_and_let_go(screen, agent):
    screen.look("phone")
    screen.open(agent.url)
    screen.expect("Now it follows the newest version.", "#pin")
    version = screen.find("#version")
    assert version.get_attribute("value") == "24"
    version.clear()
    version.send_keys("19")
    screen.find("#hold button").click()
    screen.expect("Hold this host at version 19?", "#sure")
    screen.find("#sure [value=no]").click()
    screen.wait(lambda: not screen.find("#sure").is_displayed(), "it stays open")
    assert agent.posts == []

    def held():
        agent.answer = agent.answer | {"follower": agent.answer["follower"] | {
            "version": 19, "pinned": 19}, "lag": {"versions": 5, "seconds": 60.0}}
    agent.on_post = held
    screen.find("#hold button").click()
    screen.find("#sure [value=yes]").click()
    screen.expect("The agent agreed to hold version 19.", "#answer")
    screen.expect("Held at version 19", "h1")
    path, headers, body = agent.posts[0]
    assert (path, body) == ("/pin", {"version": 19})
    assert headers["Content-Type"] == "application/json"
    assert headers["Origin"] + "/" == agent.url

    agent.on_post = None
    agent.post_answer = (409, {"error": {"code": "conflict", "text": "not <now>"}})
    screen.find("#unpin").click()
    screen.find("#sure [value=yes]").click()
    screen.expect("The agent answers with an error (409): not <now>", "#answer")
    agent.post_answer = (200, {})
    screen.find("#unpin").click()
    screen.find("#sure [value=yes]").click()
    screen.expect("The agent agreed to follow the newest version again.", "#answer")
    assert [post[0] for post in agent.posts] == ["/pin", "/unpin", "/unpin"]


def test_less_motion(screen, agent):
    agent.answer = STATES["behind"]()
    for motion, name in ("no-preference", "turn"), ("reduce", "none"):
        screen.look(motion=motion)
        screen.open(agent.url)
        screen.expect("behind", "h1")
        assert screen.run("return getComputedStyle(document.getElementById('turn'))"
                          ".animationName") == name


def test_asks_nothing_while_hidden(screen, agent):
    screen.open(agent.url)
    screen.expect("Serving", "h1")
    first = screen.driver.current_window_handle
    screen.driver.switch_to.new_window("tab")
    try:
        publish(agent, 3)
    finally:
        screen.driver.close()
        screen.driver.switch_to.window(first)
    screen.expect("27", "#tiles")
    assert "No answer" not in screen.text()
